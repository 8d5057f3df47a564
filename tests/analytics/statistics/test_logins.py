"""Stored counts of log-ins: used while they are valid, and made again after further log-ins."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from analytics.statistics.logins import LoginCounts, count_days
from analytics.statistics.prewarm import Prewarm
from analytics.statistics.query import days_between
from analytics.store.clickhouse import ClickHouse
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.push.v1.push_pb2 import Kind
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from tests.analytics.records import APP, T0, app_outcomes, device, outcomes, send, session, started
from tests.analytics.service import ingest, value

UTC = ZoneInfo("UTC")
DAY_MS = 86_400_000
TODAY = date(2026, 9, 21)
YESTERDAY = date(2026, 9, 20)
TOMORROW = date(2026, 9, 22)


def login(number: int, age_days: int = 0) -> NewRecord:
    return session(number, SessionEventKind.SESSION_EVENT_KIND_LOGGED_IN, T0 - age_days * DAY_MS)


async def test_a_range_is_counted_once(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    await count_days(clickhouse, UTC)
    await ingest(log, clickhouse, tmp_path, [login(1), login(2, 1), login(3, 6), login(3, 29)])
    logins = LoginCounts(clickhouse, APP, "")
    first = await logins.between(YESTERDAY, TODAY)
    assert first == {
        YESTERDAY: {"": [1, 1, 1, 1, 1, 2, 2, 2]},
        TODAY: {"": [1, 2, 2, 2, 2, 2, 3, 3]},
    }
    kept = await value(clickhouse, "SELECT max(kept) FROM login_counts")
    assert await logins.between(YESTERDAY, TODAY) == first
    assert await value(clickhouse, "SELECT (count(), max(kept)) FROM login_counts") == (2, kept)

    await ingest(log, clickhouse, tmp_path, [login(4, 10), login(2)])
    assert await logins.between(YESTERDAY, TODAY) == {
        YESTERDAY: {"": [1, 1, 1, 1, 1, 2, 2, 3]},
        TODAY: {"": [2, 2, 2, 2, 2, 2, 3, 4]},
    }
    assert await logins.between(date(2025, 1, 1), date(2025, 1, 9)) == {}


async def test_today_is_merged_with_the_stored_sets_of_earlier_days(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    await count_days(clickhouse, UTC)
    await ingest(log, clickhouse, tmp_path, [device(n, attributes={"brand": "Mi"}) for n in range(9)])
    await ingest(log, clickhouse, tmp_path, [login(1), login(2, 2), login(2, 5), login(3, 29), login(4, 30)])
    by_brand = LoginCounts(clickhouse, APP, "brand")
    assert await by_brand.between(TODAY, TODAY) == {TODAY: {"Mi": [1, 1, 2, 2, 2, 2, 2, 3]}}
    sets = "SELECT (count(), max(kept)) FROM login_before"
    made = await value(clickhouse, sets)
    assert made[0] == 3, "two, five and 29 days before"

    await ingest(log, clickhouse, tmp_path, [login(5), login(2), login(3)])
    assert await by_brand.between(TODAY, TODAY) == {TODAY: {"Mi": [4, 4, 4, 4, 4, 4, 4, 4]}}
    assert await value(clickhouse, sets) == made, "the sets are still so"

    await ingest(log, clickhouse, tmp_path, [login(6, 2), login(7, 3)])
    assert await by_brand.between(TODAY, TODAY) == {TODAY: {"Mi": [4, 4, 5, 6, 6, 6, 6, 6]}}
    assert await value(clickhouse, "SELECT count() FROM login_counts") == 0, "a single day is not kept"


async def test_days_of_another_zone(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    await count_days(clickhouse, UTC)
    await ingest(log, clickhouse, tmp_path, [login(1)])
    logins = LoginCounts(clickhouse, APP, "")
    assert (await logins.between(YESTERDAY, TODAY)).keys() == {TODAY}
    assert (await logins.between(TODAY, TODAY)).keys() == {TODAY}
    await count_days(clickhouse, ZoneInfo("Pacific/Kiritimati"))
    assert await logins.between(TODAY, TOMORROW) == {TOMORROW: {"": [1] * 8}}


async def test_collecting_log_ins_resumes_after_a_kill(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """The service was killed after it created the view and before it filled the sets from stored rows."""
    await ingest(log, clickhouse, tmp_path, [login(1)])
    await count_days(clickhouse, UTC)
    await clickhouse.command("ALTER TABLE login_days_of_sessions MODIFY COMMENT ''")
    await clickhouse.command("TRUNCATE TABLE login_days")
    await count_days(clickhouse, UTC)
    assert await LoginCounts(clickhouse, APP, "").between(TODAY, TODAY) == {TODAY: {"": [1] * 8}}


async def test_large_apps_are_counted_ahead(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    await count_days(clickhouse, UTC)
    await ingest(log, clickhouse, tmp_path, [login(1), login(2), login(1, 1)])
    preparing = Prewarm(clickhouse, ManualClock(T0), UTC, min_logins=4)
    await preparing.count()
    assert await value(clickhouse, "SELECT count() FROM login_counts") == 0

    await ingest(log, clickhouse, tmp_path, [login(3, 2)])
    await preparing.count()
    days = "SELECT arraySort(groupUniqArray(day)) FROM login_counts WHERE category = 'sdk_version'"
    assert await value(clickhouse, days) == [date(2026, 9, 19), YESTERDAY, TODAY]
    assert await value(clickhouse, "SELECT uniqExact(category) FROM login_counts") == 6

    await ingest(log, clickhouse, tmp_path, [login(4)])
    stored = "SELECT (SELECT count() FROM login_counts), count() FROM login_before"
    prepared = tuple((await clickhouse.rows(stored))[0])
    week = await LoginCounts(clickhouse, APP, "").between(TODAY - timedelta(days=6), TODAY)
    assert week[TODAY][""][:3] == [3, 3, 4], "further log-ins of today count at once"
    assert tuple((await clickhouse.rows(stored))[0]) == prepared, "the first question stores nothing"


async def test_days_are_counted_at_midnight(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    await count_days(clickhouse, UTC)
    await ingest(log, clickhouse, tmp_path, [login(1), login(2, 1)])
    midnight_ms = days_between(TODAY, TODAY, UTC)[0].end_ms
    clock = ManualClock(midnight_ms - 60_000)
    preparing = asyncio.create_task(Prewarm(clickhouse, clock, UTC, min_logins=1).run(asyncio.Event()))
    prepared = "SELECT max(day) FROM login_before"
    try:
        async with asyncio.timeout(60):
            while await value(clickhouse, prepared) != TODAY:
                pass
            clock.move(60)
            while await value(clickhouse, prepared) != TOMORROW:
                pass
    finally:
        preparing.cancel()
        await asyncio.wait([preparing])


async def test_a_start_asks_ahead_for_the_newest_broadcast_and_for_acknowledgements(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unicast may be newer than that broadcast."""
    unicast = send(2000, kind=Kind.KIND_UNICAST, id_count=1)
    receipt = outcomes(1, app_outcomes(2000, [1], OutcomeKind.OUTCOME_KIND_RECEIVED, T0))
    await count_days(clickhouse, UTC)
    await ingest(log, clickhouse, tmp_path, [device(1), send(1000), started(1000, 1, [1]), unicast, receipt])
    asked: list[str] = []
    rows = clickhouse.rows

    async def noted(sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        asked.append(sql)
        return await rows(sql, parameters)

    monkeypatch.setattr(clickhouse, "rows", noted)
    await Prewarm(clickhouse, ManualClock(T0 + 1000), UTC).open_tables()
    by_region = "SELECT groupArray(msgid) FROM broadcast_counts WHERE category = 'region'"
    assert await value(clickhouse, by_region) == [1000]
    assert any("FROM device_tokens" in query for query in asked)


async def test_prewarming_resumes_when_the_store_answers_again(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """The first attempt fails because there is no table yet."""
    clock = ManualClock(T0)
    preparing = asyncio.create_task(Prewarm(clickhouse, clock, UTC, min_logins=1).run(asyncio.Event()))
    try:
        await clickhouse.command("RENAME TABLE login_days TO elsewhere")
        await asyncio.sleep(0)
        await clickhouse.command("RENAME TABLE elsewhere TO login_days")
        await count_days(clickhouse, UTC)
        await ingest(log, clickhouse, tmp_path, [login(1), login(2, 1)])
        async with asyncio.timeout(60):
            while not await value(clickhouse, "SELECT count() FROM login_counts"):
                clock.move(300)
    finally:
        preparing.cancel()
        await asyncio.wait([preparing])
