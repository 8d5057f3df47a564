"""Whatever devices change, the past stays as it was counted: in the store that lived it and in every rebuilt one."""

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice, product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from analytics.digest import digest, table_digests
from analytics.ingestion.ingestion import sources
from analytics.statistics.answers import answer
from analytics.statistics.logins import count_days
from analytics.statistics.query import _CATEGORIES, StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import Category, StatisticsKind, StatisticsRequest, UserKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import Attributes, RegisterDevice, SetAttributes
from services.domain.topics import TOPICS, archived_partitions
from services.log.archive.archiver import DAY_MS, Archiver
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog
from services.log.port import Log, NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from testkit.clickhouse.databases import EmptyDatabases
from tests.analytics.records import APP, PARTITIONS, T0
from tests.analytics.service import ingest, new_ingestion, running_ingestion
from tests.analytics.statistics.histories import MINUTE_MS, RandomHistory
from tests.analytics.statistics.sync_store import dates

ZONE = ZoneInfo("Asia/Shanghai")
BROADCASTS = StatisticsKind.STATISTICS_KIND_BROADCASTS
USERS = StatisticsKind.STATISTICS_KIND_USERS
Answers = Mapping[str, str]
WINDOWS = 3


def day(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(ZONE).date().isoformat()


def requests(history: RandomHistory) -> Iterator[StatisticsRequest]:
    """Yield requests of every kind and category: for the whole time, some windows in it, and each broadcast."""
    generator = random.Random(len(history.msgids))
    periods = [dates(day(T0), day(history.now_ms))]
    for _ in range(WINDOWS):
        first, last = sorted(generator.randrange(T0, history.now_ms) for _ in range(2))
        periods.append(dates(day(first), day(min(last, first + 6 * DAY_MS))))
    for kind, categories in _CATEGORIES.items():
        for category in categories:
            about: dict[str, Any] = {"appkey": APP, "kind": kind, "category": category}
            if category:
                about["info"] = "all"
            if kind == BROADCASTS:
                yield from (StatisticsRequest(msgid=msgid, **about) for msgid in history.msgids)
                continue
            for period, user_kind in product(
                periods, UserKind.values() if kind == USERS else [UserKind.USER_KIND_UNSPECIFIED]
            ):
                yield StatisticsRequest(dates=period, user_kind=user_kind, **about)


async def answers(clickhouse: ClickHouse, history: RandomHistory, asked: Sequence[StatisticsRequest]) -> Answers:
    """Return the answers by their requests."""
    return {
        str(request): str(await answer(clickhouse, StatisticsQuery.of(request, history.now_ms, ZONE)))
        for request in asked
    }


async def live(log: Log, clickhouse: ClickHouse, directory: Path, records: Iterator[NewRecord], seed: int) -> None:
    """Append the records, a few at a time, and ingest them meanwhile; the ingestion is started again at times."""
    generator = random.Random(seed)
    while restarted := list(islice(records, 400)):
        async with running_ingestion(new_ingestion(log, clickhouse, directory)) as ingestion:
            size = generator.choice((30, 200))
            for start in range(0, len(restarted), size):
                await log.append(restarted[start : start + size])
                assert await ingestion.catch_up() == 0


async def rebuilt(log: Log, clickhouse: ClickHouse, directory: Path) -> None:
    ends = await log.ends(sources(PARTITIONS))
    await new_ingestion(log, clickhouse, directory).apply_until(ends, lambda count: None)


async def check(
    engine: ClickHouse, databases: EmptyDatabases, path: Path, seed: int, steps: int, most: int = 10**9
) -> None:
    """Compare the answers to `most` requests, and the digests, of three stores with one history."""
    history = RandomHistory(seed, path)
    log = SqliteLog(path / "log" / "events.db", TOPICS)
    archived = ArchivedLog(log, ArchiveDirectory(path / "archive"))
    names = [await databases.take() for _ in range(3)]
    stores = [engine.beside(name) for name in names]
    try:
        for store in stores:
            await count_days(store, ZONE)
        await live(log, stores[0], path / "live", history.records(steps), seed)
        asked = list(requests(history))
        asked = random.Random(seed).sample(asked, min(most, len(asked)))
        wanted, contents = await answers(stores[0], history, asked), await table_digests(stores[0])
        assert sum("info" in found for found in wanted.values()) > len(wanted) / 2
        await rebuilt(log, stores[1], path / "rebuilt")
        clock = ManualClock(history.now_ms)
        archiver = Archiver(archived, clock, archived_partitions(PARTITIONS), retention_ms=DAY_MS)
        assert await archiver.archive_old() > 0
        await rebuilt(archived, stores[2], path / "archived")
        for store in stores[1:]:
            found = await answers(store, history, asked)
            assert {request: found[request] for request in wanted if found[request] != wanted[request]} == {}
            assert await table_digests(store) == contents
    finally:
        history.close()
        await log.close()
        for store, name in zip(stores, names, strict=True):
            await store.close()
            await databases.give_back(name)


async def test_a_random_history(engine: ClickHouse, databases: EmptyDatabases, tmp_path: Path) -> None:
    await check(engine, databases, tmp_path, seed=1, steps=20, most=20)


@pytest.mark.long
@pytest.mark.parametrize("seed", [108, *(pytest.param(seed, marks=pytest.mark.seeds) for seed in (100, 101, 102))])
async def test_long_random_histories(engine: ClickHouse, databases: EmptyDatabases, tmp_path: Path, seed: int) -> None:
    await check(engine, databases, tmp_path, seed, steps=200, most=150)


async def infos(clickhouse: ClickHouse, history: RandomHistory, category: Category.ValueType) -> dict[str, set[str]]:
    """Return the values of a category that each kind of statistics counts devices under, by the kind's name."""
    found: dict[str, set[str]] = {}
    for request in requests(history):
        if request.category == category:
            response = await answer(clickhouse, StatisticsQuery.of(request, history.now_ms, ZONE))
            rows = [row for _, field in response.ListFields() for row in field]
            found.setdefault(StatisticsKind.Name(request.kind), set()).update(row.info for row in rows)
    return found


@asynccontextmanager
async def two_stores(engine: ClickHouse, databases: EmptyDatabases) -> AsyncIterator[tuple[ClickHouse, ClickHouse]]:
    names = [await databases.take() for _ in range(2)]
    stores = [engine.beside(name) for name in names]
    for store in stores:
        await count_days(store, ZONE)
    yield stores[0], stores[1]
    for store, name in zip(stores, names, strict=True):
        await store.close()
        await databases.give_back(name)


BEIJING = Attributes(region="北京市", app_version="1")
SHANGHAI = Attributes(region="上海市", app_version="2")


async def test_a_device_that_moves_leaves_the_past_where_it_was(
    engine: ClickHouse, databases: EmptyDatabases, tmp_path: Path
) -> None:
    """It connects, logs in and gets a broadcast in one region: in the store, and in one made anew, all stay there."""
    history, log = RandomHistory(0, tmp_path), SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    history.command("t0", register=RegisterDevice(platform=PLATFORM_ANDROID, attributes=BEIJING))
    device = history.device("t0")
    history.session_event(device, Session.SESSION_EVENT_KIND_OPENED, 1, "g1")
    history.session_event(device, Session.SESSION_EVENT_KIND_LOGGED_IN, 1, "g1")
    history.broadcast("t0", device)
    history.count(range(T0, T0 + 10 * MINUTE_MS, MINUTE_MS))
    history.now_ms += 5 * MINUTE_MS
    async with two_stores(engine, databases) as (first, second):
        await ingest(log, first, tmp_path / "live", history.taken())
        history.command("t0", set_attributes=SetAttributes(attributes=SHANGHAI))
        history.now_ms += 5 * MINUTE_MS
        await ingest(log, first, tmp_path / "live", history.taken())
        for category, value in ((Category.CATEGORY_REGION, "北京市"), (Category.CATEGORY_APP_VERSION, "1")):
            found = await infos(first, history, category)
            kinds = {"CONNECTIONS", "BROADCASTS", "LOGINS" if category == Category.CATEGORY_REGION else "USERS"}
            assert found == {f"STATISTICS_KIND_{kind}": {value} for kind in kinds}
        await rebuilt(log, second, tmp_path / "rebuilt")
        for category in (Category.CATEGORY_REGION, Category.CATEGORY_APP_VERSION):
            assert await infos(second, history, category) == await infos(first, history, category)
        assert await digest(second) == await digest(first)
        await first.command("ALTER TABLE sessions UPDATE region = '' WHERE 1 SETTINGS mutations_sync = 1")
        assert await digest(second) != await digest(first)
    history.close()
    await log.close()


async def test_a_connection_counts_under_the_attributes_of_a_minute_after_the_welcome(
    engine: ClickHouse, databases: EmptyDatabases, tmp_path: Path
) -> None:
    """Of devices that change them after different times; the ingestion is started again in between."""
    history, log = RandomHistory(0, tmp_path), SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    delays_ms = (0, 200, 3_000, 60_000, 60_001)
    devices = {}
    for delay_ms in delays_ms:
        attributes = Attributes(region=f"before {delay_ms}")
        history.command(f"{delay_ms}", register=RegisterDevice(platform=PLATFORM_ANDROID, attributes=attributes))
        devices[delay_ms] = history.device(f"{delay_ms}")
        history.session_event(devices[delay_ms], Session.SESSION_EVENT_KIND_OPENED, 1 + delay_ms, "g1")
    opened = history.taken()
    for delay_ms in delays_ms:
        history.now_ms = T0 + delay_ms
        changed = SetAttributes(attributes=Attributes(region=f"after {delay_ms}"))
        history.command(f"{delay_ms}", set_attributes=changed)
    changes = history.taken()
    history.now_ms += 10 * MINUTE_MS
    history.count(range(T0, history.now_ms, MINUTE_MS))
    for delay_ms, device in devices.items():
        history.session_event(device, Session.SESSION_EVENT_KIND_CLOSED, 1 + delay_ms, "g1")
    closed = history.taken()
    history.now_ms += 10 * MINUTE_MS
    async with two_stores(engine, databases) as (first, second):
        for part in (opened, changes, closed):
            await ingest(log, first, tmp_path / "live", part)
        await rebuilt(log, second, tmp_path / "rebuilt")
        for store in (first, second):
            found = await infos(store, history, Category.CATEGORY_REGION)
            wanted = {"after 0", "after 200", "after 3000", "after 60000", "before 60001"}
            assert found["STATISTICS_KIND_CONNECTIONS"] == wanted
        assert await digest(second) == await digest(first)
    history.close()
    await log.close()
