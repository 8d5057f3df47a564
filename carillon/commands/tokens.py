"""`carillon token`: create, list and revoke the API tokens of teams, and tell of the one in use."""

import importlib
from typing import TYPE_CHECKING, Any

import click
import msgspec

from carillon.commands.account_calls import ROLE_NAMES, ROLES, call_accounts, find_team, role_option
from carillon.commands.app import DurationType
from carillon.commands.output import as_json_lines, print_json, print_table, say, time_text
from carillon.commands.role_calls import command_origin
from console.people.answers import OwnToken
from protos.accounts.v1.service_pb2 import (
    CreateTokenRequest,
    ListTeamsRequest,
    ListTokensRequest,
    RevokeTokenRequest,
    TokenSummary,
)

if TYPE_CHECKING:
    from carillon.installation.remote import ConsoleClient
    from protos.accounts.v1.service_pb2 import CreateTokenResponse
    from protos.accounts.v1.service_pb2_grpc import AccountsServiceAsyncStub

TeamNames = dict[str, str]


@click.group()
def token() -> None:
    """Create, list, revoke and identify API tokens, with which programs act for a team."""


@token.command()
@click.argument("team_name", metavar="TEAM")
@click.argument("name")
@role_option
@click.option(
    "--expires",
    type=DurationType(),
    default="90d",
    help="How long it is valid: 24h, 30m, 7d. Default: 90d; 0: for ever.",
)
@as_json_lines
def create(team_name: str, name: str, role: str, expires: int, json_output: bool) -> None:
    """Create an API token of a team and print its text."""

    async def made(accounts: "AccountsServiceAsyncStub") -> "CreateTokenResponse":
        request = CreateTokenRequest(
            team_id=(await find_team(accounts, team_name)).team.team_id,
            name=name,
            role=ROLES[role],
            expires_in_s=expires,
            origin=command_origin(),
        )
        return await accounts.CreateToken(request)

    answer = call_accounts(made)
    if json_output:
        print_json({**_record(answer.token, team_name), "token": answer.text})
    else:
        until = f"valid until {time_text(answer.token.expires_ms, 'minutes')}" if expires else "which does not expire"
        say(f"API token {name} of team {team_name}, {until}:", answer.text, "Store it: it is not shown again.")


@token.command(name="list")
@click.option("--team", "team_name", metavar="TEAM", help="Only those of this team.")
@as_json_lines
def list_tokens(team_name: str | None, json_output: bool) -> None:
    """List API tokens without their texts."""

    async def both(accounts: "AccountsServiceAsyncStub") -> tuple[list[TokenSummary], TeamNames]:
        team_ids = [(await find_team(accounts, team_name)).team.team_id] if team_name else []
        teams = (await accounts.ListTeams(ListTeamsRequest())).teams
        names = {known.team.team_id: known.team.name for known in teams}
        return list((await accounts.ListTokens(ListTokensRequest(team_ids=team_ids))).tokens), names

    tokens, names = call_accounts(both)
    if json_output:
        for known in tokens:
            print_json(_record(known, names[known.team_id]))
    else:
        rows = [_row(known, names[known.team_id]) for known in tokens]
        print_table(rows, "There is no API token; see `carillon token create --help`.")


@token.command()
@click.argument("token_id")
@as_json_lines
def revoke(token_id: str, json_output: bool) -> None:
    """Revoke an API token, named by its id as `carillon token list` shows it: it is refused from now on."""
    request = RevokeTokenRequest(token_id=token_id, origin=command_origin())
    call_accounts(lambda accounts: accounts.RevokeToken(request))
    if json_output:
        print_json({"token_id": token_id, "revoked": True})
    else:
        say("The API token is refused from now on.")


@token.command()
@as_json_lines
def whoami(json_output: bool) -> None:
    """Show the API token in use: its team, what it may do there, and until when.

    Needs a console: `carillon --url https://HOST --token-file FILE token whoami`.
    """
    console: ConsoleClient = importlib.import_module("carillon.installation.remote").console_client()
    own = console.get(OwnToken, "token")
    if json_output:
        print_json(msgspec.to_builtins(own))
    else:
        until = f"valid until {time_text(own.expires_ms)}" if own.expires_ms else "which does not expire"
        say(f"API token {own.name} ({own.token_id}), {until}: {own.role} of team {own.team}.")


def _record(known: TokenSummary, team: str) -> dict[str, Any]:
    return {
        "token_id": known.token_id,
        "team": team,
        "name": known.name,
        "role": ROLE_NAMES[known.role],
        "created_ms": known.created_ms,
        "expires_ms": known.expires_ms or None,
        "last_used_ms": known.last_used_ms or None,
    }


def _row(known: TokenSummary, team: str) -> dict[str, str]:
    return {
        "token id": known.token_id,
        "team": team,
        "name": known.name,
        "role": ROLE_NAMES[known.role],
        "expires": time_text(known.expires_ms, "minutes"),
        "last used": time_text(known.last_used_ms, "minutes"),
    }
