"""Wiring of the console role, the web page of operators and teams."""

from console.app import console_app
from console.devices.erasures import ErasureDirectory, ErasureEnds
from console.first_start import FirstStart
from console.overview.installation import Observer
from console.settings import ROLE_NAME, ConsoleSettings
from console.shell.feeds import Feeds
from services.domain.accounts import AccountDirectory
from services.domain.master_key import KeyPurpose
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.net.http.connections import pages_limits
from services.net.sockets import hard_file_limit
from services.process.clock import HangWatch
from services.replica.status_board import StatusBoard


def build(settings: ConsoleSettings, context: RoleContext) -> BuiltRole:
    """Wire the role: pages on the port of the process, and the accounts that may use them."""
    accounts, erasures = AccountDirectory(context.log), ErasureDirectory(context.log)
    board = context.board or StatusBoard(context.clock)
    # Half of the connections are left for pages and forms.
    feeds = Feeds(context.clock, pages_limits(hard_file_limit()).connections // 2)
    hangs = HangWatch()
    observer = Observer(board, context.clock)
    ends = ErasureEnds(erasures, observer, board, context.peers, context.clock)
    return BuiltRole(
        ROLE_NAME,
        [accounts, erasures, ends, FirstStart(settings, context.peers), feeds, hangs],
        followers=[accounts.followed],
        pages=console_app(settings, context, accounts, observer, erasures, feeds, hangs),
    )


ROLE = RoleDefinition(ROLE_NAME, ConsoleSettings, build, keys=frozenset({KeyPurpose.SECRETS}))
