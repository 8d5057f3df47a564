"""`carillon team`: create teams, and set their members, apps and approval rules."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from carillon.commands.account_calls import ROLE_NAMES, ROLES, call_accounts, find_team, find_user, role_option
from carillon.commands.output import as_json_lines, print_json, print_table, say
from carillon.commands.role_calls import command_origin
from carillon.installation.chosen import named_console
from console.people.answers import TeamList, TeamWithMembers
from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.service_pb2 import (
    CreateTeamRequest,
    GetUsersRequest,
    GiveAppRequest,
    ListTeamsRequest,
    SetMemberRequest,
    TeamSummary,
    UpdateTeamRequest,
)
from services.domain.approval import DEFAULT_SHARE_PERCENT, MAX_SHARE_PERCENT, share_percent

if TYPE_CHECKING:
    from carillon.installation.remote import ConsoleClient
    from protos.accounts.v1.service_pb2_grpc import AccountsServiceAsyncStub

Logins = dict[str, str]
_MAX_DIGITS = 18


@click.group()
def team() -> None:
    """Create, list and change teams; apps belong to teams, and users have a role in each."""


@team.command()
@click.argument("name")
@as_json_lines
def add(name: str, json_output: bool) -> None:
    """Create a team."""

    async def create(accounts: "AccountsServiceAsyncStub") -> TeamSummary:
        return (await accounts.CreateTeam(CreateTeamRequest(name=name, origin=command_origin()))).team

    _change(create, f"Team {name} is created.", json_output)


@team.command(name="list")
@as_json_lines
def list_teams(json_output: bool) -> None:
    """List all teams with their members, apps and approval rules; with an API token, only its team."""
    console = named_console()
    if console is not None:
        _list_from_elsewhere(console, json_output)
        return

    async def both(accounts: "AccountsServiceAsyncStub") -> tuple[list[TeamSummary], Logins]:
        teams = list((await accounts.ListTeams(ListTeamsRequest())).teams)
        return teams, await _logins(accounts, teams)

    teams, logins = call_accounts(both)
    if json_output:
        for known in teams:
            print_json(_record(known, logins))
    else:
        rows = [_row(_record(known, logins)) for known in teams]
        print_table(rows, "There is no team yet; see `carillon team add --help`.")


def _list_from_elsewhere(console: "ConsoleClient", json_output: bool) -> None:
    teams = [console.get(TeamWithMembers, "teams", known.team_id) for known in console.get(TeamList, "teams").teams]
    records = [
        {
            "team_id": known.team_id,
            "name": known.name,
            "members": {member.login: member.role for member in known.members},
            "apps": known.appkeys,
            "approve_broadcasts": known.rules.broadcasts,
            "approve_above": known.rules.above_devices,
            "broadcast_share": known.rules.broadcast_share,
            "confirm_erasures": known.rules.erasures,
        }
        for known in teams
    ]
    if json_output:
        for record in records:
            print_json(record)
    else:
        print_table([_row(record) for record in records], "The API token belongs to no team.")


@team.command()
@click.argument("team_name", metavar="TEAM")
@click.argument("login")
@role_option
@as_json_lines
def add_member(team_name: str, login: str, role: str, json_output: bool) -> None:
    """Give a user a role in a team, in place of the present one if there is one."""
    _change(_member_setter(team_name, login, ROLES[role]), f"User {login} is {role} of team {team_name}.", json_output)


@team.command()
@click.argument("team_name", metavar="TEAM")
@click.argument("login")
@as_json_lines
def remove_member(team_name: str, login: str, json_output: bool) -> None:
    """Remove a user from a team."""
    _change(_member_setter(team_name, login, None), f"User {login} is no member of team {team_name}.", json_output)


@team.command()
@click.argument("team_name", metavar="TEAM")
@click.argument("appkey")
@as_json_lines
def give_app(team_name: str, appkey: str, json_output: bool) -> None:
    """Give an app to a team; it then belongs to no other."""

    async def give(accounts: "AccountsServiceAsyncStub") -> TeamSummary:
        team_id = (await find_team(accounts, team_name)).team.team_id
        await accounts.GiveApp(GiveAppRequest(appkey=appkey, team_id=team_id, origin=command_origin()))
        return await find_team(accounts, team_id)

    _change(give, f"App {appkey} belongs to team {team_name}.", json_output)


@team.command(name="set")
@click.argument("team_name", metavar="TEAM")
@click.option("--name", help="A new name.")
@click.option(
    "--approve-broadcasts",
    type=click.Choice(["on", "off"]),
    help="Whether broadcasts need an approval; see --broadcast-share.",
)
@click.option(
    "--approve-above", metavar="N", help="Pushes to more than N devices need an approval; off: no such limit."
)
@click.option(
    "--broadcast-share",
    metavar="PERCENT",
    type=click.IntRange(1, MAX_SHARE_PERCENT),
    help=f"The share of an app's devices from which on a push is a broadcast; {DEFAULT_SHARE_PERCENT} unless set.",
)
@click.option(
    "--confirm-erasures",
    type=click.Choice(["on", "off"]),
    help="Whether another administrator has to confirm the erasure of a person.",
)
@as_json_lines
def set_team(
    team_name: str,
    name: str | None,
    approve_broadcasts: str | None,
    approve_above: str | None,
    broadcast_share: int | None,
    confirm_erasures: str | None,
    json_output: bool,
) -> None:
    """Change a team's name, or what needs a second person: which of its pushes, and erasures of persons.

    A push is a broadcast if it reaches a share of an app's devices, however its audience is written. The pushes of one
    sender within an hour count together for both rules. They hold for people and API tokens, not for app servers.
    """
    if all(each is None for each in (name, approve_broadcasts, approve_above, broadcast_share, confirm_erasures)):
        raise click.UsageError(
            "name a change: --name, --approve-broadcasts, --approve-above, --broadcast-share or --confirm-erasures"
        )
    if approve_above not in (None, "off") and not _is_device_count(str(approve_above)):
        raise click.BadParameter("must be a number of devices, or off", param_hint="--approve-above")

    async def update(accounts: "AccountsServiceAsyncStub") -> TeamSummary:
        known = (await find_team(accounts, team_name)).team
        rules = ApprovalRules()
        rules.CopyFrom(known.rules)
        if approve_broadcasts is not None:
            rules.broadcasts = approve_broadcasts == "on"
        if approve_above == "off":
            rules.ClearField("above_devices")
        elif approve_above is not None:
            rules.above_devices = int(approve_above)
        if broadcast_share is not None:
            rules.share_percent = broadcast_share
        if confirm_erasures is not None:
            rules.erasures = confirm_erasures == "on"
        request = UpdateTeamRequest(team_id=known.team_id, name=name, rules=rules, origin=command_origin())
        return (await accounts.UpdateTeam(request)).team

    _change(update, f"Team {name or team_name} is changed.", json_output)


def _is_device_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _member_setter(
    team_name: str, login: str, role: int | None
) -> "Callable[[AccountsServiceAsyncStub], Awaitable[TeamSummary]]":
    async def set_member(accounts: "AccountsServiceAsyncStub") -> TeamSummary:
        request = SetMemberRequest(
            team_id=(await find_team(accounts, team_name)).team.team_id,
            user_id=(await find_user(accounts, login)).user_id,
            role=role,  # type: ignore[arg-type]
            origin=command_origin(),
        )
        return (await accounts.SetMember(request)).team

    return set_member


def _change(
    change: "Callable[[AccountsServiceAsyncStub], Awaitable[TeamSummary]]", done: str, json_output: bool
) -> None:
    async def change_and_name(accounts: "AccountsServiceAsyncStub") -> tuple[TeamSummary, Logins]:
        changed = await change(accounts)
        return changed, await _logins(accounts, [changed])

    changed, logins = call_accounts(change_and_name)
    if json_output:
        print_json(_record(changed, logins))
    else:
        say(done)


async def _logins(accounts: "AccountsServiceAsyncStub", teams: Iterable[TeamSummary]) -> Logins:
    members = {member.user_id for known in teams for member in known.team.members}
    return {user.user_id: user.login for user in (await accounts.GetUsers(GetUsersRequest(user_ids=members))).users}


def _record(known: TeamSummary, logins: Logins) -> dict[str, Any]:
    rules = known.team.rules
    return {
        "team_id": known.team.team_id,
        "name": known.team.name,
        "members": {logins[member.user_id]: ROLE_NAMES[member.role] for member in known.team.members},
        "apps": list(known.appkeys),
        "approve_broadcasts": rules.broadcasts,
        "approve_above": rules.above_devices if rules.HasField("above_devices") else None,
        "broadcast_share": share_percent(rules),
        "confirm_erasures": rules.erasures,
        "created_ms": known.team.created_ms,
    }


def _row(record: dict[str, Any]) -> dict[str, str]:
    rules = [f"broadcasts (from {record['broadcast_share']} %)"] if record["approve_broadcasts"] else []
    if record["approve_above"] is not None:
        rules.append(f"above {record['approve_above']} devices")
    if record["confirm_erasures"]:
        rules.append("erasures")
    return {
        "team": record["name"],
        "members": ", ".join(f"{login} ({role})" for login, role in record["members"].items()) or "-",
        "apps": ", ".join(record["apps"]) or "-",
        "approval": ", ".join(rules) or "-",
    }
