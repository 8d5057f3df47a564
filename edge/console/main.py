"""Wiring of the console role, the web page of operators and teams."""

from edge.console.app import console_app
from edge.console.first_start import FirstStart
from edge.console.settings import ROLE_NAME, ConsoleSettings
from services.domain.accounts.directory import AccountDirectory
from services.domain.master_key import KeyPurpose
from services.domain.role import BuiltRole, RoleContext, RoleDefinition


def build(settings: ConsoleSettings, context: RoleContext) -> BuiltRole:
    """Wire the role: pages on the port of the process, and the accounts that may use them."""
    accounts = AccountDirectory(context.log)
    return BuiltRole(
        ROLE_NAME,
        [accounts, FirstStart(settings, context.peers)],
        followers=[accounts.followed],
        pages=console_app(settings, context, accounts),
    )


ROLE = RoleDefinition(ROLE_NAME, ConsoleSettings, build, keys=frozenset({KeyPurpose.SECRETS}))
