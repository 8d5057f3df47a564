"""What the accounts role has answered to the people of the teams of a world."""

from dataclasses import dataclass, field

from protos.accounts.v1.accounts_pb2 import Team
from protos.accounts.v1.drafts_pb2 import Draft
from protos.accounts.v1.service_pb2 import UserSummary


@dataclass
class AccountsLedger:
    """The latest answered content of users, teams and drafts, by id. `decisions`: the names of answered decisions on
    drafts, such as "approved". `errors`: answers that contradict earlier ones."""

    users: dict[str, UserSummary] = field(default_factory=dict)
    teams: dict[str, Team] = field(default_factory=dict)
    apps: dict[str, str] = field(default_factory=dict)
    """The id of the team of each app."""
    tokens: set[str] = field(default_factory=set)
    revoked_tokens: set[str] = field(default_factory=set)
    drafts: dict[str, Draft] = field(default_factory=dict)
    decisions: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
