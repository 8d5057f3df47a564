"""The account behind a request, and the access that a route needs: declared with it, checked in `AccessControl`."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from protos.accounts.v1.accounts_pb2 import User
from protos.runtime.v1.log_pb2 import Origin
from services.domain.accounts import AccountDirectory
from services.domain.permissions import Action, Actor, may


class Scope(Enum):
    """What an action concerns: the installation, the team of the app in the path, or the team in the path."""

    INSTALLATION = ""
    APP = "appkey"
    TEAM = "team_id"


@dataclass(frozen=True, slots=True)
class Access:
    """The access that a request needs. `action` None: a log-in is enough; the page shows only what the user may see.

    `is_of_program`: a program sends it, which proves itself by what it sends, and has neither cookie nor CSRF token.
    `is_of_enrolment`: it is open also to a user who must set up a second factor before anything else.
    """

    action: Action | None = None
    scope: Scope = Scope.INSTALLATION
    is_public: bool = False
    is_of_program: bool = False
    is_of_enrolment: bool = False


PUBLIC = Access(is_public=True)
PROGRAM = Access(is_public=True, is_of_program=True)
LOGGED_IN = Access()
OWN_ACCOUNT = Access(Action.CHANGE_OWN_ACCOUNT)
ENROLMENT = Access(Action.CHANGE_OWN_ACCOUNT, is_of_enrolment=True)


def of_app(action: Action) -> Access:
    """Return the access of a route with {appkey} in its path."""
    return Access(action, Scope.APP)


def of_team(action: Action) -> Access:
    """Return the access of a route with {team_id} in its path."""
    return Access(action, Scope.TEAM)


def of_installation(action: Action) -> Access:
    return Access(action, Scope.INSTALLATION)


# The account behind one request, whether a page or a call is asked for.


@dataclass(kw_only=True)
class Requester:
    """The actor of a request with what it may do, and the origin that its changes carry in the log."""

    actor: Actor
    origin: Origin
    accounts: AccountDirectory

    def may(self, action: Action, team_id: str = "") -> bool:
        return may(self.actor, action, team_id)

    def may_app(self, action: Action, appkey: str) -> bool:
        """Return whether the actor may do this with an app."""
        return may(self.actor, action, self.accounts.team_of(appkey))


# Which users must have a second factor, and have none yet.

Demand: TypeAlias = Literal["nobody", "administrators", "everyone"]
"""The users of whom a second factor is demanded. `administrators` are those of the installation."""


class SecondFactors:
    """Says who must set up one-time codes before anything else. Users of an OpenID Connect provider need none here."""

    def __init__(self, accounts: AccountDirectory, demand: Demand) -> None:
        self._accounts = accounts
        self._demand = demand

    def must_enrol(self, user: User) -> bool:
        if self._demand == "nobody" or user.HasField("subject"):
            return False
        is_demanded = self._demand == "everyone" or user.administrator
        return is_demanded and not self._accounts.has_second_factor(user.user_id)
