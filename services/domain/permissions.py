"""Permissions of accounts: one pure function, and the table of actions that it reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType

from protos.accounts.v1.accounts_pb2 import MemberRole


class Role(IntEnum):
    """What a member or an API token may do in a team; each role may do what the lower ones may."""

    VIEWER = MemberRole.MEMBER_ROLE_VIEWER
    SENDER = MemberRole.MEMBER_ROLE_SENDER
    APPROVER = MemberRole.MEMBER_ROLE_APPROVER
    ADMINISTRATOR = MemberRole.MEMBER_ROLE_ADMINISTRATOR


class Action(Enum):
    """Everything that an account can do."""

    VIEW = "see a team's apps, pushes, tasks, statistics and audit"
    VIEW_DEVICES = "see a team's devices and what was sent to them"
    EXPORT_PERSON = "export everything that is held about a person with a team's app"
    ERASE_PERSON = "erase a person, with all devices, for ever"
    SEND = "send, test, cancel and submit pushes of a team"
    APPROVE = "approve and reject drafts of others in a team"
    PAUSE = "pause and resume apps of a team"
    CHANGE_APP = "change settings, secrets and keys of a team's apps"
    MANAGE_TEAM = "change a team's members, name and approval rules"
    MANAGE_TOKENS = "create and revoke a team's API tokens"
    CHANGE_OWN_ACCOUNT = "change one's own password, second factor, language and time zone"
    MANAGE_USERS = "create, change and disable users"
    MANAGE_TEAMS = "create teams and give them apps"
    MANAGE_INSTALLATION = "create apps, pause all of them, and see every role's state"


NEEDED_ROLE: Mapping[Action, Role] = MappingProxyType(
    {
        Action.VIEW: Role.VIEWER,
        Action.VIEW_DEVICES: Role.VIEWER,
        Action.EXPORT_PERSON: Role.ADMINISTRATOR,
        Action.ERASE_PERSON: Role.ADMINISTRATOR,
        Action.SEND: Role.SENDER,
        Action.APPROVE: Role.APPROVER,
        Action.PAUSE: Role.APPROVER,
        Action.CHANGE_APP: Role.ADMINISTRATOR,
        Action.MANAGE_TEAM: Role.ADMINISTRATOR,
        Action.MANAGE_TOKENS: Role.ADMINISTRATOR,
    }
)
"""The role in a team that an action needs there. Actions that are missing here concern no team."""

ONLY_PEOPLE = frozenset({Action.APPROVE, Action.MANAGE_TEAM, Action.MANAGE_TOKENS, Action.CHANGE_OWN_ACCOUNT})
"""Actions that no API token may do: an approval, which a person gives, and those that could raise its own rights."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The one who acts: an operator at the command line, a user, or an API token.

    `roles`: the role in each team of the user or the token. `name`: user/ID, token/ID, or "" for an operator.
    """

    name: str = ""
    is_operator: bool = False
    is_administrator: bool = False
    is_disabled: bool = False
    roles: Mapping[str, Role] = field(default_factory=dict)

    @property
    def is_person(self) -> bool:
        """Whether a user acts, and not a program or an operator, whom the service does not know as a person."""
        return self.name.startswith("user/")


OPERATOR = Actor(is_operator=True)


def may(actor: Actor, action: Action, team_id: str = "") -> bool:
    """Return whether the actor may do this, in this team or to this team's app.

    `team_id` "": the action concerns no team, or an app of no team, which administrators of the installation alone
    may see and use.
    """
    if actor.is_disabled or (action in ONLY_PEOPLE and actor.name.startswith("token/")):
        return False
    if action == Action.CHANGE_OWN_ACCOUNT:
        return actor.is_person
    if actor.is_operator or actor.is_administrator:
        return True
    needed = NEEDED_ROLE.get(action)
    return needed is not None and bool(team_id) and actor.roles.get(team_id, 0) >= needed
