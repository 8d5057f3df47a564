"""Analytics' settings and wiring, and building its store again from the log."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec

from analytics.ingestion.ingestion import ROLE, Ingestion, sources
from analytics.server import AnalyticsServicer
from analytics.statistics.logins import count_days
from analytics.statistics.prewarm import Prewarm
from analytics.store.clickhouse import ClickHouse
from analytics.store.digest import digest
from analytics.store.migrate import check_migrated, migrate
from analytics.store.retention import keep
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub, add_AnalyticsServiceServicer_to_server
from services.domain.role import Role, RoleContext
from services.runtime.errors import InputError
from services.runtime.log.port import Log, Partition
from services.runtime.process.clock import SystemClock
from services.runtime.process.retries import until_available
from services.runtime.process.settings import PREFIX, Settings, SettingsError
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.replay import Verdict, to_fold

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

DATABASE = "carillon"
PAST = "_past"
"""What follows the database's name when it holds an earlier state."""

DAY_MS = 86_400_000
_PATIENCE_S = 5.0


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
        return self.state_dir(ROLE) / "offsets.db"


SETTINGS = AnalyticsSettings


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
                await until_available("the analytics store does not answer", self._open)
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


def build(settings: AnalyticsSettings, context: RoleContext) -> Role:
    """Wire the role: hold the store open, fill it from the log, answer audits."""
    clickhouse = connect(settings)
    ingestion = _ingestion(settings, context.log, clickhouse, settings.offsets_file())
    servicer = AnalyticsServicer(
        *(ingestion, clickhouse, context.clock, settings.zone()),
        partitions=settings.partitions,
        ack_delay_ms=settings.ack_delay_s * 1000,
        others=_others(settings, context),
    )
    patience_s = _PATIENCE_S if settings.clickhouse_url else None
    is_first = settings.shard == 0
    store = Store(clickhouse, settings.history_days, settings.zone(), is_first=is_first, patience_s=patience_s)
    preparing = [Prewarm(clickhouse, context.clock, settings.zone())] if is_first else []
    return Role(
        ROLE,
        services=[store, Filling(store, ingestion, patience_s), *preparing],
        servicers=[lambda server: add_AnalyticsServiceServicer_to_server(servicer, server)],
    )


def _others(settings: AnalyticsSettings, context: RoleContext) -> "list[AnalyticsServiceAsyncStub]":
    channels = context.peers.all(ROLE) if settings.shards > 1 else []
    return [AnalyticsServiceStub(channel) for shard, channel in enumerate(channels) if shard != settings.shard]


def connect(settings: AnalyticsSettings) -> ClickHouse:
    """The store that the settings name, not opened yet."""
    path = urlsplit(settings.clickhouse_url or "").path
    return ClickHouse(settings.clickhouse_url, settings.state_dir(ROLE) / "chdb", path.strip("/") or DATABASE)


async def rebuild(
    settings: AnalyticsSettings,
    log: Log,
    ends: Mapping[Partition, int],
    on_batch: Callable[[int], None],
    on_total: Callable[[int], None] = lambda total: None,
) -> str:
    """Empty the store and fill it from the log up to the ends; returns its digest. The role must not be running.

    What the log no longer has is gone then: earlier states of devices that were compacted away, for one. Of several
    instances this one fills its share, and every other one its own at its next start.
    """
    clickhouse = connect(settings)
    await clickhouse.open()
    try:
        await clickhouse.drop()
        on_total(_all(settings, ends))
        return await _filled(settings, log, clickhouse, settings.offsets_file(), ends, on_batch, _kept_ms(settings))
    finally:
        await clickhouse.close()


async def fill(
    settings: AnalyticsSettings,
    directory: Path,
    log: Log,
    ends: Mapping[Partition, int],
    on_batch: Callable[[int], None],
    on_total: Callable[[int], None] = lambda total: None,
) -> str:
    """Fill a store of its own up to the ends, with what all instances read, and leave it there; returns its digest.

    With chdb it is in the directory; on a server it is the database with `_past` after the name, emptied before.
    """
    settings = msgspec.structs.replace(settings, shard=0, shards=1)
    clickhouse = ClickHouse(settings.clickhouse_url, directory / "chdb", f"{connect(settings).database}{PAST}")
    await clickhouse.open()
    try:
        await clickhouse.drop()
        on_total(_all(settings, ends))
        offsets = directory / "offsets.db"
        return await _filled(settings, log, clickhouse, offsets, ends, on_batch, _kept_ms(settings))
    finally:
        await clickhouse.close()


async def verify(
    settings: AnalyticsSettings,
    log: Log,
    ends: Mapping[Partition, int],
    on_batch: Callable[[int], None],
    on_total: Callable[[int], None] = lambda total: None,
) -> Verdict:
    """Fill the store up to the ends and compare it with another one, filled from nothing in a database beside it.

    InputError: several instances fill the store, so this one cannot bring it to the ends.
    """
    if settings.shards > 1:
        raise InputError(f"--verify cannot compare a store that several instances fill: {PREFIX}SHARDS is more than 1")
    since_ms = _kept_ms(settings)
    clickhouse = connect(settings)
    await clickhouse.open()
    try:
        live = await _filled(settings, log, clickhouse, settings.offsets_file(), ends, lambda count: None, since_ms)
        beside = clickhouse.beside(f"{clickhouse.database}_verify")
        try:
            await beside.drop()
            on_total(_all(settings, ends))
            with TemporaryDirectory(dir=settings.state_dir(ROLE)) as work:
                rebuilt = await _filled(settings, log, beside, Path(work) / "offsets.db", ends, on_batch, since_ms)
            await beside.drop()
        finally:
            await beside.close()
        return Verdict(live, rebuilt)
    finally:
        await clickhouse.close()


async def _filled(
    settings: AnalyticsSettings,
    log: Log,
    clickhouse: ClickHouse,
    offsets: Path,
    ends: Mapping[Partition, int],
    on_batch: Callable[[int], None],
    since_ms: int,
) -> str:
    await migrate(clickhouse)
    await _ingestion(settings, log, clickhouse, offsets).fold_until(ends, on_batch)
    return await digest(clickhouse, since_ms)


def _all(settings: AnalyticsSettings, ends: Mapping[Partition, int]) -> int:
    return to_fold(ends, sources(settings.partitions, settings.shard, settings.shards), {})


def _kept_ms(settings: AnalyticsSettings) -> int:
    """From when on nothing was dropped for its age: a day later than must be, as both stores drop in their own time."""
    return SystemClock().now_ms() - (settings.history_days - 1) * DAY_MS


def _ingestion(settings: AnalyticsSettings, log: Log, clickhouse: ClickHouse, offsets: Path) -> Ingestion:
    return Ingestion(
        log,
        clickhouse,
        offsets,
        DeadLetters(settings.data / "parked" / f"{ROLE}.jsonl", ROLE),
        sources(settings.partitions, settings.shard, settings.shards),
        instance=f"{settings.shard}/{settings.shards}",
        stores_commands=settings.shard == 0,
    )
