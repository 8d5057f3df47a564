"""Settings of the analytics role."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from services.runtime.process.settings import PREFIX, Settings, SettingsError

ROLE_NAME = "analytics"
DATABASE = "carillon"


class AnalyticsSettings(Settings, frozen=True, kw_only=True):
    """`clickhouse_url`: http(s)://user:password@host:port/database of a server; unset, chdb in the data directory."""

    clickhouse_url: str | None = None
    ack_delay_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 900
    history_days: Annotated[int, msgspec.Meta(ge=31, le=36_500)] = 400

    def check(self) -> None:
        super().check()
        if self.clickhouse_url is None:
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

    def offsets_file(self) -> Path:
        return self.state_dir(ROLE_NAME) / "offsets.db"
