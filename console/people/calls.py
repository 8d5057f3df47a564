"""Calls about teams, members and the API token itself."""

from typing import Any

from console.people.answers import ApprovalRules, Member, OwnToken, Team, TeamList, TeamWithMembers
from console.shell.access import Requester
from console.shell.backend import Backend, team_of, visible_teams
from console.shell.calls import NoParams
from console.shell.requests import TeamParams
from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.accounts_pb2 import Team as StoredTeam
from protos.accounts.v1.service_pb2 import GetUsersRequest
from services.domain.approval import share_percent


async def own_token(backend: Backend, requester: Requester, params: NoParams) -> OwnToken:
    """Return the API token that asks: its team, what it may do there, and until when."""
    token = backend.accounts.token_of(requester.actor.name)
    ((team_id, role),) = requester.actor.roles.items()
    team = backend.accounts.team(team_id)
    return OwnToken(
        token_id=token.token_id,
        name=token.name,
        team_id=team_id,
        team=team.name if team else "",
        role=role.name.lower(),
        expires_ms=token.expires_ms or None,
    )


async def list_teams(backend: Backend, requester: Requester, params: NoParams) -> TeamList:
    """List the teams that the API token may see: its own."""
    return TeamList([Team(**_fields(backend, team)) for team in visible_teams(backend, requester)])


async def team(backend: Backend, requester: Requester, params: TeamParams) -> TeamWithMembers:
    """Return a team with its members."""
    found = team_of(backend, params.team_id)
    asked = GetUsersRequest(user_ids=[member.user_id for member in found.members])
    users = {user.user_id: user for user in (await backend.roles.accounts.GetUsers(asked)).users}
    members = [
        Member(member.user_id, users[member.user_id].login, users[member.user_id].display_name, _role(member.role))
        for member in found.members
        if member.user_id in users
    ]
    return TeamWithMembers(**_fields(backend, found), members=members)


def _fields(backend: Backend, team: StoredTeam) -> dict[str, Any]:
    rules = team.rules
    return {
        "team_id": team.team_id,
        "name": team.name,
        "appkeys": [app.appkey for app in backend.apps.all() if backend.accounts.team_of(app.appkey) == team.team_id],
        "rules": ApprovalRules(
            rules.broadcasts,
            rules.above_devices if rules.HasField("above_devices") else None,
            share_percent(rules),
            rules.erasures,
        ),
    }


def _role(role: "MemberRole.ValueType") -> str:
    return MemberRole.Name(role).removeprefix("MEMBER_ROLE_").lower()
