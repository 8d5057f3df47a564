"""Calls of the account commands, which name users and teams as people do: by login name and by team name."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from carillon.commands.role_calls import call_role
from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.service_pb2 import GetUsersRequest, ListTeamsRequest, TeamSummary, UserSummary
from protos.accounts.v1.service_pb2_grpc import AccountsServiceStub
from services.errors import NotFoundError
from services.net.rpc.channel import Channel

if TYPE_CHECKING:
    from protos.accounts.v1.service_pb2_grpc import AccountsServiceAsyncStub

Answer = TypeVar("Answer")
ROLES = {name.removeprefix("MEMBER_ROLE_").lower(): number for name, number in MemberRole.items() if number}
"""The roles in a team, by the names that commands use."""

ROLE_NAMES = {number: name for name, number in ROLES.items()}
role_option = click.option("--role", type=click.Choice(list(ROLES)), required=True, help="What it may do in the team.")


def call_accounts(call: "Callable[[AccountsServiceAsyncStub], Awaitable[Answer]]") -> Answer:
    """Call the role accounts. click.ClickException explains what to do if the call fails."""

    async def with_stub(channel: Channel) -> Answer:
        return await call(AccountsServiceStub(channel))

    return call_role("accounts", with_stub)


async def find_user(accounts: "AccountsServiceAsyncStub", login: str) -> UserSummary:
    """Return the user with this login name. NotFoundError: there is none."""
    for user in (await accounts.GetUsers(GetUsersRequest(logins=[login]))).users:
        return user
    raise NotFoundError(f"there is no user {login!r}; `carillon user list` shows all")


async def find_team(accounts: "AccountsServiceAsyncStub", name: str) -> TeamSummary:
    """Return the team with this name or id. NotFoundError: there is none."""
    for team in (await accounts.ListTeams(ListTeamsRequest(team=name))).teams:
        return team
    raise NotFoundError(f"there is no team {name!r}; `carillon team list` shows all")
