"""The services of analytics' projection: the store in ClickHouse, and the ingestion that fills it from the log."""

import asyncio
import contextlib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.ingestion.ingestion import Ingestion, sources
from analytics.settings import DATABASE, ROLE_NAME, AnalyticsSettings
from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import check_migrated, migrate
from analytics.store.retention import apply_retention
from analytics.store.retention_days import RetentionDays
from services.domain.role_context import open_archive
from services.errors import UnavailableError
from services.log.port import Log
from services.process import background
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.dead_letters import DeadLetters


class StoreStartTimeouts(NamedTuple):
    """How many seconds a start waits for the store after a first failure to open it, and at most in any case."""

    after_failure_s: float
    at_most_s: float


class AnalyticsStore:
    """A service that opens the analytics store, migrates it, and sets how long rows are kept.

    Only the first of several instances migrates; the others wait for its migrations. After `timeouts` the
    service is ready even if the store is not open, so that the roles that deliver pushes start without it.
    """

    name = "analytics store"

    def __init__(
        self,
        clickhouse: ClickHouse,
        retention_days: RetentionDays,
        zone: ZoneInfo,
        *,
        is_first: bool = True,
        timeouts: StoreStartTimeouts,
    ) -> None:
        self.opened = asyncio.Event()
        self._clickhouse = clickhouse
        self._is_first = is_first
        self._retention_days = retention_days
        self._zone = zone
        self._timeouts = timeouts
        self._failed = asyncio.Event()
        self._problem = "opening it takes long"

    async def run(self, ready: asyncio.Event) -> None:
        waiting = background.start("waiting for the analytics store", self._start_without(ready))
        try:
            await retry_until_available("the analytics store does not answer", self._open)
            self.opened.set()
            waiting.cancel()
            ready.set()
            await asyncio.Event().wait()
        finally:
            waiting.cancel()
            await self._clickhouse.close()

    async def _start_without(self, ready: asyncio.Event) -> None:
        after_failure_s, at_most_s = self._timeouts
        await asyncio.sleep(after_failure_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s - after_failure_s):
                await self._failed.wait()
        logger.error(
            "the service starts without analytics, because its store is not open yet: until it is, statistics,"
            " acknowledgements and audits are unavailable; nothing is lost",
            problem=self._problem,
        )
        ready.set()

    async def _open(self) -> None:
        try:
            await self._open_once()
        except UnavailableError as error:
            self._problem = str(error)
            self._failed.set()
            raise

    async def _open_once(self) -> None:
        await self._clickhouse.open()
        if not self._is_first:
            await check_migrated(self._clickhouse)
            return
        await migrate(self._clickhouse)
        await apply_retention(self._clickhouse, self._retention_days)
        await count_days(self._clickhouse, self._zone)


class DeferredIngestion:
    """A service that starts the ingestion once the store is open.

    It is ready at once if the store, which starts before it, is not open by then, and after `ready_within_s` at most.
    """

    name = Ingestion.name

    def __init__(self, store: AnalyticsStore, ingestion: Ingestion, ready_within_s: float) -> None:
        self._store = store
        self._ingestion = ingestion
        self._ready_within_s = ready_within_s

    async def run(self, ready: asyncio.Event) -> None:
        if not self._store.opened.is_set():
            ready.set()
        timer = asyncio.get_running_loop().call_later(self._ready_within_s, ready.set)
        try:
            await self._store.opened.wait()
            await self._ingestion.run(ready)
        finally:
            timer.cancel()


def connect(settings: AnalyticsSettings) -> ClickHouse:
    """Return the store of the settings, not opened yet."""
    path = urlsplit(settings.clickhouse_url or "").path
    return ClickHouse(settings.clickhouse_url, settings.state_dir(ROLE_NAME) / "chdb", path.strip("/") or DATABASE)


def open_ingestion(
    settings: AnalyticsSettings,
    log: Log,
    clickhouse: ClickHouse,
    offsets_file: Path,
    limits: IngestionLimits | None = None,
) -> Ingestion:
    """Return the ingestion of this instance's share of the log; `offsets_file` holds how far it has come.

    UnavailableError: the archive does not work.
    """
    archive = open_archive(settings)
    return Ingestion(
        log,
        clickhouse,
        offsets_file,
        DeadLetters(settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl", ROLE_NAME),
        sources(settings.partitions, settings.shard, settings.shards),
        instance=f"{settings.shard}/{settings.shards}",
        stores_commands=settings.shard == 0,
        limits=limits,
        begins=archive.begin().offsets if archive else {},
    )
