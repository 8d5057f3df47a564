"""The services of analytics' projection: the store in ClickHouse, and the ingestion that fills it from the log."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from analytics.ingestion.ingestion import Ingestion, sources
from analytics.settings import DATABASE, ROLE_NAME, AnalyticsSettings
from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import check_migrated, migrate
from analytics.store.retention import apply_retention
from services.runtime.log.port import Log
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.dead_letters import DeadLetters


class AnalyticsStore:
    """A service that opens the analytics store, migrates it, and sets how long rows are kept.

    Only the first of several instances migrates; the others wait for its migrations. With `ready_within_s` the service
    is ready after that time even if no server answers, so that the roles that deliver pushes start without analytics.
    """

    name = "analytics store"

    def __init__(
        self,
        clickhouse: ClickHouse,
        history_days: int,
        zone: ZoneInfo,
        *,
        is_first: bool = True,
        ready_within_s: float | None = None,
    ) -> None:
        self.opened = asyncio.Event()
        self._clickhouse = clickhouse
        self._is_first = is_first
        self._history_days = history_days
        self._zone = zone
        self._ready_within_s = ready_within_s

    async def run(self, ready: asyncio.Event) -> None:
        with ready_within(self._ready_within_s, ready):
            try:
                await retry_until_available("the analytics store does not answer", self._open)
                self.opened.set()
                ready.set()
                await asyncio.Event().wait()
            finally:
                await self._clickhouse.close()

    async def _open(self) -> None:
        await self._clickhouse.open()
        if not self._is_first:
            await check_migrated(self._clickhouse)
            return
        await migrate(self._clickhouse)
        await apply_retention(self._clickhouse, self._history_days)
        await count_days(self._clickhouse, self._zone)


class DeferredIngestion:
    """A service that starts the ingestion once the store is open; `ready_within_s` as for AnalyticsStore."""

    name = Ingestion.name

    def __init__(self, store: AnalyticsStore, ingestion: Ingestion, ready_within_s: float | None = None) -> None:
        self._store = store
        self._ingestion = ingestion
        self._ready_within_s = ready_within_s

    async def run(self, ready: asyncio.Event) -> None:
        with ready_within(self._ready_within_s, ready):
            await self._store.opened.wait()
            await self._ingestion.run(ready)


@contextlib.contextmanager
def ready_within(seconds: float | None, ready: asyncio.Event) -> Iterator[None]:
    """Set `ready` after this many seconds at the latest; None: leave it to the body."""
    if seconds is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(seconds, ready.set)
    try:
        yield
    finally:
        timer.cancel()


def connect(settings: AnalyticsSettings) -> ClickHouse:
    """Return the store of the settings, not opened yet."""
    path = urlsplit(settings.clickhouse_url or "").path
    return ClickHouse(settings.clickhouse_url, settings.state_dir(ROLE_NAME) / "chdb", path.strip("/") or DATABASE)


def open_ingestion(settings: AnalyticsSettings, log: Log, clickhouse: ClickHouse, offsets_file: Path) -> Ingestion:
    """Return the ingestion of this instance's share of the log; `offsets_file` holds how far it has come."""
    return Ingestion(
        log,
        clickhouse,
        offsets_file,
        DeadLetters(settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl", ROLE_NAME),
        sources(settings.partitions, settings.shard, settings.shards),
        instance=f"{settings.shard}/{settings.shards}",
        stores_commands=settings.shard == 0,
    )
