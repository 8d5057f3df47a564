"""Replays of analytics: the store is built again from the log, to replace the live one or to be compared with it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from analytics.ingestion.ingestion import sources
from analytics.projection import connect, open_ingestion
from analytics.settings import ROLE_NAME, AnalyticsSettings
from analytics.store.clickhouse import ClickHouse
from analytics.store.digest import digest
from analytics.store.migrate import migrate
from services.runtime.errors import InputError
from services.runtime.log.port import Log, Partition
from services.runtime.process.clock import SystemClock
from services.runtime.process.settings import PREFIX
from services.runtime.projection.replay import ReplayComparison, to_fold

PAST = "_past"
"""Suffix of the database that holds the state of an earlier moment."""

_DAY_MS = 86_400_000


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
) -> ReplayComparison:
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
            with TemporaryDirectory(dir=settings.state_dir(ROLE_NAME)) as work:
                rebuilt = await _filled(settings, log, beside, Path(work) / "offsets.db", ends, on_batch, since_ms)
            await beside.drop()
        finally:
            await beside.close()
        return ReplayComparison(live, rebuilt)
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
    await open_ingestion(settings, log, clickhouse, offsets).apply_until(ends, on_batch)
    return await digest(clickhouse, since_ms)


def _all(settings: AnalyticsSettings, ends: Mapping[Partition, int]) -> int:
    return to_fold(ends, sources(settings.partitions, settings.shard, settings.shards), {})


def _kept_ms(settings: AnalyticsSettings) -> int:
    """From when on nothing was dropped for its age: a day later than must be, as both stores drop in their own time."""
    return SystemClock().now_ms() - (settings.history_days - 1) * _DAY_MS
