"""Analytics' projection: the store in ClickHouse, and the ingestion that fills it from the log."""

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
from analytics.store.retention import keep
from services.runtime.log.port import Log
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.dead_letters import DeadLetters


class Store:
    """A service that holds the analytics store open, with every migration applied and old rows going away.

    Of several instances the first sees to that, and the others wait for its migrations. Whoever starts after it waits
    for a server `patience_s` at most: pushes do not wait for statistics.
    """

    name = "analytics store"

    def __init__(
        self,
        clickhouse: ClickHouse,
        history_days: int,
        zone: ZoneInfo,
        *,
        is_first: bool = True,
        patience_s: float | None = None,
    ) -> None:
        self.opened = asyncio.Event()
        self._clickhouse = clickhouse
        self._is_first = is_first
        self._history_days = history_days
        self._zone = zone
        self._patience_s = patience_s

    async def run(self, ready: asyncio.Event) -> None:
        with ready_after(self._patience_s, ready):
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
        await keep(self._clickhouse, self._history_days)
        await count_days(self._clickhouse, self._zone)


class Filling:
    """A service: the ingestion, once the store is open."""

    name = Ingestion.name

    def __init__(self, store: Store, ingestion: Ingestion, patience_s: float | None = None) -> None:
        self._store = store
        self._ingestion = ingestion
        self._patience_s = patience_s

    async def run(self, ready: asyncio.Event) -> None:
        with ready_after(self._patience_s, ready):
            await self._store.opened.wait()
            await self._ingestion.run(ready)


@contextlib.contextmanager
def ready_after(patience_s: float | None, ready: asyncio.Event) -> Iterator[None]:
    """Say ready when so much time went by, whatever else is said."""
    if patience_s is None:
        yield
        return
    saying = asyncio.get_running_loop().call_later(patience_s, ready.set)
    try:
        yield
    finally:
        saying.cancel()


def connect(settings: AnalyticsSettings) -> ClickHouse:
    """The store that the settings name, not opened yet."""
    path = urlsplit(settings.clickhouse_url or "").path
    return ClickHouse(settings.clickhouse_url, settings.state_dir(ROLE_NAME) / "chdb", path.strip("/") or DATABASE)


def open_ingestion(settings: AnalyticsSettings, log: Log, clickhouse: ClickHouse, offsets: Path) -> Ingestion:
    return Ingestion(
        log,
        clickhouse,
        offsets,
        DeadLetters(settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl", ROLE_NAME),
        sources(settings.partitions, settings.shard, settings.shards),
        instance=f"{settings.shard}/{settings.shards}",
        stores_commands=settings.shard == 0,
    )
