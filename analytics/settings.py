"""Settings of the analytics role."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from analytics.store.query_limits import QueryLimits
from services.domain.settings import PREFIX, Settings, SettingsError
from services.process.build import missing_package

ROLE_NAME = "analytics"
DATABASE = "carillon"
_MAX_ROWS = 1_000_000


class AnalyticsSettings(Settings, frozen=True, kw_only=True):
    """`clickhouse_url`: http(s)://user:password@host:port/database of a server; unset, chdb in the data directory.

    `query_seconds` and `query_memory_mb` are of one query for statistics, an audit or acknowledgements.
    """

    clickhouse_url: str | None = None
    ack_delay_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 900
    erasure_batch_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 3600
    history_days: Annotated[int, msgspec.Meta(ge=31, le=36_500)] = 400
    query_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 15
    query_memory_mb: Annotated[int, msgspec.Meta(ge=64)] = 4096

    def check(self) -> None:
        super().check()
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

    def query_limits(self) -> QueryLimits:
        """Return the limits of one query whose caller waits for the answer."""
        return QueryLimits(self.query_seconds, self.query_memory_mb * 1024 * 1024, _MAX_ROWS)

    def offsets_file(self) -> Path:
        return self.state_dir(ROLE_NAME) / "offsets.db"
