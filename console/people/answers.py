"""Teams, members and API tokens in answers."""

from typing import Annotated

import msgspec

from edge.core.parsing.fields import described


class ApprovalRules(msgspec.Struct, frozen=True):
    """What needs a second person: which pushes, and whether erasures."""

    broadcasts: Annotated[
        bool, described("Those to at least `broadcast_share` percent of an app's devices, however they are written.")
    ]
    above_devices: Annotated[int | None, described("Those to more devices than this; null: none for their number.")]
    broadcast_share: Annotated[
        int, described("From which share of an app's devices on, in percent, a push is a broadcast.")
    ]
    erasures: Annotated[bool, described("Erasures of persons: another administrator has to confirm them.")] = False


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """A team."""

    team_id: Annotated[str, described("The team.")]
    name: Annotated[str, described("Its name.")]
    appkeys: Annotated[list[str], described("Its apps.")]
    rules: Annotated[ApprovalRules, described("Its approval rules.")]


class Member(msgspec.Struct, frozen=True):
    """A member of a team."""

    user_id: Annotated[str, described("The user.")]
    login: Annotated[str, described("The log-in name.")]
    name: Annotated[str, described("The name for people.")]
    role: Annotated[str, described("viewer, sender, approver or administrator.")]


class TeamWithMembers(Team, frozen=True, kw_only=True):
    """A team with its members."""

    members: Annotated[list[Member], described("The members.")]


class TeamList(msgspec.Struct, frozen=True):
    """Teams, by name."""

    teams: Annotated[list[Team], described("The teams.")]


class OwnToken(msgspec.Struct, frozen=True, kw_only=True):
    """The API token that asks."""

    token_id: Annotated[str, described("Its id.")]
    name: Annotated[str, described("Its name.")]
    team_id: Annotated[str, described("Its team.")]
    team: Annotated[str, described("The name of the team.")]
    role: Annotated[str, described("viewer, sender, approver or administrator.")]
    expires_ms: Annotated[int | None, described("When it expires, ms since 1970; null: never.")]
