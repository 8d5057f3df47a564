"""Replays of analytics: rebuild the store from the log, to replace the live one, compare it, or keep it beside it."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from analytics.digest import LATEST_ONLY, digest
from analytics.erasure_batches import read_erasures
from analytics.erasures import forget
from analytics.ingestion.ingestion import sources
from analytics.ingestion.tables.catalogue import TABLES
from analytics.projection import connect, open_ingestion
from analytics.settings import ROLE_NAME, AnalyticsSettings
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from services.domain.role_context import open_archive
from services.domain.settings import PREFIX
from services.errors import InputError
from services.process.clock import SystemClock
from services.replica.replay import ReplayComparison, ReplaySource, UnreportedProgress, to_fold

PAST = "_past"
"""Suffix of the database with the state of an earlier moment."""


async def rebuild(settings: AnalyticsSettings, source: ReplaySource) -> str:
    """Empty the store and fill it from the log up to the ends; return its digest. The role must not be running.

    Rows of records that were compacted away, such as earlier device states, are lost. With several instances, this one
    fills its share only, and every other instance fills its own at its next start.
    """
    clickhouse = connect(settings)
    await clickhouse.open()
    try:
        await clickhouse.drop()
        await _fold(settings, source, clickhouse, settings.offsets_file())
        return await digest(clickhouse, *_compared(settings))
    finally:
        await clickhouse.close()


async def fill(settings: AnalyticsSettings, directory: Path, source: ReplaySource) -> str:
    """Fill a separate store from the log up to `source.ends`, as if one instance had all partitions; return its digest.

    With chdb the store is in the directory; on a server it is the database with the suffix `_past`. It is emptied.
    """
    settings = msgspec.structs.replace(settings, shard=0, shards=1)
    clickhouse = ClickHouse(settings.clickhouse_url, directory / "chdb", f"{connect(settings).database}{PAST}")
    await clickhouse.open()
    try:
        await clickhouse.drop()
        await _fold(settings, source, clickhouse, directory / "offsets.db")
        return await digest(clickhouse, *_compared(settings))
    finally:
        await clickhouse.close()


async def verify(settings: AnalyticsSettings, source: ReplaySource) -> ReplayComparison:
    """Fill the store up to the ends and compare it with a second database, filled from the log's beginning.

    InputError: several instances fill the store, so this one alone cannot bring it to the ends.
    """
    if settings.shards > 1:
        raise InputError(f"--verify cannot compare a store that several instances fill: {PREFIX}SHARDS is more than 1")
    compared = _compared(settings)
    clickhouse = connect(settings)
    await clickhouse.open()
    try:
        unreported = replace(source, progress=UnreportedProgress())
        await _fold(settings, unreported, clickhouse, settings.offsets_file())
        live = await digest(clickhouse, *compared)
        beside = clickhouse.beside(f"{clickhouse.database}_verify")
        try:
            await beside.drop()
            with TemporaryDirectory(dir=settings.state_dir(ROLE_NAME)) as work:
                await _fold(settings, source, beside, Path(work) / "offsets.db")
                rebuilt = await digest(beside, *compared)
            await beside.drop()
        finally:
            await beside.close()
        return ReplayComparison(live, rebuilt)
    finally:
        await clickhouse.close()


async def _fold(settings: AnalyticsSettings, source: ReplaySource, clickhouse: ClickHouse, offsets_file: Path) -> None:
    source.progress.begin(to_fold(source.ends, sources(settings.partitions, settings.shard, settings.shards), {}))
    await migrate(clickhouse)
    ingestion = open_ingestion(settings, source.log, clickhouse, offsets_file)
    await ingestion.apply_until(source.ends, source.progress.advance)
    await forget(clickhouse, await read_erasures(source.log, source.ends))


def _compared(settings: AnalyticsSettings) -> tuple[dict[str, int], int]:
    """Return since when both stores have all rows of each table, and all contents of pushes: see `digest`.

    Where the archive has an end, a rebuilt store lacks what was before, and connections that began before.
    """
    now_ms, days = SystemClock().now_ms(), settings.retention_days()
    since_ms = days.rows_since_ms(now_ms)
    archive = open_archive(settings)
    if removed_ms := archive.begin().removed_before_ms if archive else 0:
        since_ms = {table: max(removed_ms, since_ms.get(table, 0)) for table in TABLES if table != LATEST_ONLY}
        since_ms["connection_changes"] = now_ms
    return since_ms, days.contents_since_ms(now_ms)
