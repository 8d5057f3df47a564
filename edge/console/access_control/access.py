"""Who may use a route: declared with the route, and checked in one place, the class `AccessControl`."""

from dataclasses import dataclass
from enum import Enum

from services.domain.accounts.permissions import Action


class Scope(Enum):
    """What an action of a route concerns: the installation, or the team of the app or the team that the path names."""

    INSTALLATION = ""
    APP = "appkey"
    TEAM = "team_id"


@dataclass(frozen=True, slots=True)
class Access:
    """What a request needs. `action` None: being logged in is enough, and the page shows only what the user may see.

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
