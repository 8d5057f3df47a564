"""Wiring of the console role, the web page of operators and teams."""

from edge.console.app import console_app
from edge.console.first_start import FirstStart
from edge.console.live.feeds import Feeds
from edge.console.live.installation import Observer
from edge.console.settings import ROLE_NAME, ConsoleSettings
from services.domain.accounts.directory import AccountDirectory
from services.domain.master_key import KeyPurpose
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.runtime.http.limits import pages_limits
from services.runtime.process.clock import HangWatch
from services.runtime.sockets.open_files import hard_file_limit
from services.runtime.status.status_board import StatusBoard


def build(settings: ConsoleSettings, context: RoleContext) -> BuiltRole:
    """Wire the role: pages on the port of the process, and the accounts that may use them."""
    accounts = AccountDirectory(context.log)
    board = context.board or StatusBoard(context.clock)
    # Half of the connections are left for pages and forms.
    feeds = Feeds(context.clock, pages_limits(hard_file_limit()).connections // 2)
    hangs = HangWatch()
    return BuiltRole(
        ROLE_NAME,
        [accounts, FirstStart(settings, context.peers), feeds, hangs],
        followers=[accounts.followed],
        pages=console_app(settings, context, accounts, Observer(board, context.clock), feeds, hangs),
    )


ROLE = RoleDefinition(ROLE_NAME, ConsoleSettings, build, keys=frozenset({KeyPurpose.SECRETS}))
