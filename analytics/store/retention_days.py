"""For how many days the analytics store keeps each class of data, as the settings say."""

from collections.abc import Mapping
from typing import NamedTuple

from services.domain.statistics_rows import LOGIN_DAYS

ACK_DAYS = 2
DEFAULT_HISTORY_DAYS = 400
DEFAULT_REFUSAL_DAYS = 30
DAY_MS = 86_400_000

HISTORY = {
    "deliveries": "time",
    "push_outcomes": "time",
    "push_channels": "time",
    "push_values": "time",
    "device_commands": "time",
    "connection_counts": "minute",
    "connection_changes": "minute",
    "connection_hours": "hour",
}
"""Tables of outcomes and counts, with the column of a row's age."""

SESSIONS = {"sessions": "time", "login_days": "day", "login_counts": "day"}
AUDIT = {"actions": "time", "app_changes": "time"}
REFUSALS = {"refused_requests": "time"}
AGES: Mapping[str, str] = {**HISTORY, **SESSIONS, **AUDIT, **REFUSALS, "acks": "time"}
"""All tables whose rows may have an end, with the column of a row's age. Of other tables rows are kept for ever."""

CONTENTS: Mapping[str, tuple[str, ...]] = {
    "pushes": ("title", "text", "request_json"),
    "task_pushes": ("title", "text", "request_json"),
    "broadcasts": ("title", "text"),
}
"""Columns with the contents of pushes. They are emptied by their `time`; the rows stay, as statistics count them."""

_OF_LOG_INS = frozenset({"sessions", "login_days"})
"""Tables that are kept longer than others of their class, by the longest of LOGIN_DAYS.

A date's numbers of logged-in users need the days before it. `login_days` is filled from `sessions` for another zone.
"""


class RetentionDays(NamedTuple):
    """Days for which the classes of data are kept; None: for ever, but sessions: as long as `history`."""

    history: int = DEFAULT_HISTORY_DAYS
    sessions: int | None = None
    contents: int | None = None
    audit: int | None = None
    refusals: int = DEFAULT_REFUSAL_DAYS

    def of_tables(self) -> dict[str, int | None]:
        """Return for how many days each table of AGES keeps its rows; None: for ever."""
        sessions = self.history if self.sessions is None else self.sessions
        more = max(LOGIN_DAYS)
        return {
            **dict.fromkeys(HISTORY, self.history),
            **{table: sessions + (more if table in _OF_LOG_INS else 0) for table in SESSIONS},
            **dict.fromkeys(AUDIT, self.audit),
            **dict.fromkeys(REFUSALS, self.refusals),
            "acks": ACK_DAYS,
        }

    def rows_since_ms(self, now_ms: int) -> dict[str, int]:
        """Return since when each table has all its rows, in ms since 1970 UTC. Tables that are not named have all.

        That is a day less than what is kept, as ClickHouse drops rows at merges.
        """
        return {table: _since_ms(now_ms, days) for table, days in self.of_tables().items() if days is not None}

    def contents_since_ms(self, now_ms: int) -> int:
        """Return since when the rows of CONTENTS have all contents, in ms since 1970 UTC."""
        return 0 if self.contents is None else _since_ms(now_ms, self.contents)


def _since_ms(now_ms: int, days: int) -> int:
    return now_ms - (days - 1) * DAY_MS
