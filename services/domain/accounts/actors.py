"""Accounts as actors: a user with the roles of the teams, and an API token with the role in its team."""

from collections.abc import Iterable

from protos.accounts.v1.accounts_pb2 import Team, Token, User
from protos.runtime.v1.log_pb2 import Origin
from services.domain.accounts.permissions import Actor, Role


def user_actor(user: User, teams: Iterable[Team]) -> Actor:
    """Return the user as an actor with the roles of these teams."""
    roles = {
        team.team_id: Role(member.role) for team in teams for member in team.members if member.user_id == user.user_id
    }
    return Actor(f"user/{user.user_id}", is_administrator=user.administrator, is_disabled=user.disabled, roles=roles)


def names_account(origin: Origin) -> bool:
    """Return whether the origin of a record is an account of the console, and so under the approval rules of teams."""
    return origin.interface == "console" and origin.actor.startswith(("user/", "token/"))


def token_actor(token: Token, now_ms: int) -> Actor:
    """Return the API token as an actor; one that has expired may do nothing."""
    is_expired = bool(token.expires_ms) and now_ms >= token.expires_ms
    return Actor(f"token/{token.token_id}", is_disabled=is_expired, roles={token.team_id: Role(token.role)})
