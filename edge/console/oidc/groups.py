"""What the groups of a user at the provider give here: roles in teams, and the rights of an administrator.

The file is a JSON object by group:

    {"push-admins": {"administrator": true},
     "news-desk": {"teams": {"News": "sender", "Sport": "viewer"}}}
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from protos.accounts.v1.accounts_pb2 import MemberRole
from protos.accounts.v1.service_pb2 import GroupRoles, TeamRole


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one group gives. `teams`: the role in each team, by the team's name or id."""

    administrator: bool = False
    teams: dict[str, Literal["viewer", "sender", "approver", "administrator"]] = {}


@dataclass(frozen=True, slots=True)
class GroupMapping:
    """What each group gives, by its name at the provider."""

    grants: Mapping[str, Grant]

    @classmethod
    def parse(cls, content: bytes) -> "GroupMapping":
        """Read the file. ValueError: it is no mapping, or gives nothing."""
        grants = msgspec.json.decode(content, type=dict[str, Grant])
        if not any(grant.administrator or grant.teams for grant in grants.values()):
            raise ValueError("no group gives anything, so nobody could log in")
        return cls(grants)

    def roles_of(self, groups: Collection[str]) -> GroupRoles:
        """Return what these groups give together; of several roles in a team the highest."""
        grants = [self.grants[group] for group in groups if group in self.grants]
        teams: dict[str, int] = {}
        for grant in grants:
            for team, name in grant.teams.items():
                teams[team] = max(MemberRole.Value(f"MEMBER_ROLE_{name.upper()}"), teams.get(team, 0))
        return GroupRoles(
            administrator=any(grant.administrator for grant in grants),
            teams=[TeamRole(team=team, role=MemberRole.ValueType(role)) for team, role in sorted(teams.items())],
        )


def groups_in(claim: object) -> list[str]:
    """Return the groups that a claim names: a list of texts, or one text; whatever else is no group."""
    if isinstance(claim, str):
        return [claim]
    return [group for group in claim if isinstance(group, str)] if isinstance(claim, list) else []
