"""Settings of the analytics role."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from analytics.store.query_limits import QueryLimits
from analytics.store.retention_days import DEFAULT_HISTORY_DAYS, DEFAULT_REFUSAL_DAYS, RetentionDays
from services.domain.settings import PREFIX, Settings, SettingsError
from services.process.build import missing_package

ROLE_NAME = "analytics"
DATABASE = "carillon"
MIN_AUDIT_DAYS = 366
_MAX_ROWS = 1_000_000


class AnalyticsSettings(Settings, frozen=True, kw_only=True):
    """`clickhouse_url`: http(s)://user:password@host:port/database of a server; unset, chdb in the data directory.

    `history_days`, `session_days`, `content_days`, `audit_days` and `refusal_days`: for how many days ClickHouse keeps
    outcomes and counts, sessions and log-ins, contents of pushes, actions of accounts, and refused requests. None: for
    ever, but sessions: as long as outcomes.

    `query_seconds` and `query_memory_mb` are of one query for statistics, an audit or acknowledgements.
    """

    clickhouse_url: str | None = None
    ack_delay_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 900
    history_days: Annotated[int, msgspec.Meta(ge=31, le=36_500)] = DEFAULT_HISTORY_DAYS
    session_days: Annotated[int, msgspec.Meta(ge=31, le=36_500)] | None = None
    content_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] | None = None
    audit_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] | None = None
    refusal_days: Annotated[int, msgspec.Meta(ge=1, le=DEFAULT_REFUSAL_DAYS)] = DEFAULT_REFUSAL_DAYS
    query_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 15
    query_memory_mb: Annotated[int, msgspec.Meta(ge=64)] = 4096

    def check(self) -> None:
        super().check()
        if self.audit_days is not None and self.audit_days < MIN_AUDIT_DAYS:
            raise SettingsError(
                f"{PREFIX}AUDIT_DAYS is {self.audit_days}: use {MIN_AUDIT_DAYS} or more, because a timed push may wait"
                " for a year and the action that made it says whose it is; unset, actions are kept for ever"
            )
        if self.clickhouse_url is None:
            if find_spec("chdb") is None:
                raise SettingsError(missing_package(f"analytics without {PREFIX}CLICKHOUSE_URL", "chdb"))
            if self.shards > 1:
                raise SettingsError(f"{PREFIX}CLICKHOUSE_URL is needed when {PREFIX}SHARDS is more than 1")
            return
        try:
            parts = urlsplit(self.clickhouse_url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise SettingsError(f"{PREFIX}CLICKHOUSE_URL must look like http://user:password@host:8123/{DATABASE}")

    def retention_days(self) -> RetentionDays:
        """Return for how many days the store keeps each class of data."""
        return RetentionDays(
            self.history_days, self.session_days, self.content_days, self.audit_days, self.refusal_days
        )

    def query_limits(self) -> QueryLimits:
        """Return the limits of one query whose caller waits for the answer."""
        return QueryLimits(self.query_seconds, self.query_memory_mb * 1024 * 1024, _MAX_ROWS)

    def offsets_file(self) -> Path:
        return self.state_dir(ROLE_NAME) / "offsets.db"
