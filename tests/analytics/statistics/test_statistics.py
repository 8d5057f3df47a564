"""Statistics requests: periods, distributions, invalid requests, and days of 23 and 25 hours."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import apply_retention
from analytics.store.retention_days import RetentionDays
from protos.analytics.v1.analytics_pb2 import (
    Category,
    ConnectionsRow,
    LoginsRow,
    StatisticsKind,
    StatisticsRequest,
    TimeScope,
    UsersRow,
)
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from services.errors import InputError
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from tests.analytics.records import APP, T0, app_outcomes, connection_counts, device, outcomes, session
from tests.analytics.service import ingest, running_service, value
from tests.analytics.statistics.sync_store import dates

CONNECTIONS = StatisticsKind.STATISTICS_KIND_CONNECTIONS
BROADCASTS = StatisticsKind.STATISTICS_KIND_BROADCASTS
USERS = StatisticsKind.STATISTICS_KIND_USERS
LOGINS = StatisticsKind.STATISTICS_KIND_LOGINS
MINUTE_MS = 60_000
DAY_MS = 86_400_000
SPRING_MS = 1_774_738_800_000  # 2026-03-29 00:00 in Berlin, a day of 23 hours
AUTUMN_MS = 1_792_879_200_000  # 2026-10-25 00:00 in Berlin, a day of 25 hours


REGIONS_TODAY = {"scope": TimeScope.TIME_SCOPE_TODAY, "category": Category.CATEGORY_REGION, "info": "all"}


def statistics_request(kind: StatisticsKind.ValueType, **fields: Any) -> StatisticsRequest:
    return StatisticsRequest(appkey=APP, kind=kind, **fields)


@pytest.mark.parametrize(("start_ms", "day", "hours"), [(SPRING_MS, "2026-03-29", 23), (AUTUMN_MS, "2026-10-25", 25)])
async def test_a_day_on_which_clocks_change(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, start_ms: int, day: str, hours: int
) -> None:
    """With ten connections all day, an hour too many or too few would change the average."""
    end_ms = start_ms + hours * 60 * MINUTE_MS
    marks = range(start_ms - MINUTE_MS, end_ms + MINUTE_MS, MINUTE_MS)
    clock = ManualClock(end_ms + DAY_MS)
    async with running_service(log, clickhouse, tmp_path, clock, "Europe/Berlin") as analytics:
        await log.append([connection_counts(at, {APP: 10}) for at in marks])
        await log.append(
            [
                device(1, registered_ms=start_ms - 1),
                device(2, registered_ms=start_ms),
                device(3, registered_ms=end_ms - 1),
                device(4, registered_ms=end_ms),
                session(1, Session.SESSION_EVENT_KIND_LOGGED_IN, start_ms - 1),
                session(2, Session.SESSION_EVENT_KIND_LOGGED_IN, start_ms),
                session(3, Session.SESSION_EVENT_KIND_LOGGED_IN, end_ms - 1),
                session(4, Session.SESSION_EVENT_KIND_LOGGED_IN, end_ms),
                session(5, Session.SESSION_EVENT_KIND_LOGGED_IN, start_ms - 29 * DAY_MS + DAY_MS // 2),
                session(6, Session.SESSION_EVENT_KIND_LOGGED_IN, start_ms - 30 * DAY_MS + DAY_MS // 2),
            ]
        )
        period = dates(day, day)
        answer = await analytics.Statistics(statistics_request(CONNECTIONS, dates=period))
        assert list(answer.connections) == [ConnectionsRow(date=day, average=10, maximum=10, minimum=10)]
        answer = await analytics.Statistics(statistics_request(USERS, dates=period))
        assert list(answer.users) == [UsersRow(date=day, count=2)]
        answer = await analytics.Statistics(statistics_request(LOGINS, dates=period))
        counts = {1: 2, 2: 3, 3: 3, 4: 3, 5: 3, 6: 3, 7: 3, 30: 4}
        assert list(answer.logins) == [LoginsRow(date=day, counts=counts)]


async def test_gateways_add_up_and_a_dead_one_stops_counting(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """g1 has 100 connections and dies after two minutes; its devices reconnect to g2 within one."""
    clock = ManualClock(AUTUMN_MS + 5 * MINUTE_MS)
    async with running_service(log, clickhouse, tmp_path, clock, "Europe/Berlin") as analytics:
        g1, g2 = [100, 100], [20, 20, 60, 120, 120]
        counts = [connection_counts(AUTUMN_MS + n * MINUTE_MS, {APP: c}, "g1") for n, c in enumerate(g1)]
        counts += [connection_counts(AUTUMN_MS + n * MINUTE_MS, {APP: c}, "g2") for n, c in enumerate(g2)]
        await log.append([*counts, *counts[:2]])
        request = statistics_request(CONNECTIONS, scope=TimeScope.TIME_SCOPE_TODAY)
        expected = ConnectionsRow(date="2026-10-25", average=(120 * 4 + 60) / 5, maximum=120, minimum=60)
        assert list((await analytics.Statistics(request)).connections) == [expected]

        clock.move(60)
        expected.average, expected.minimum = (120 * 4 + 60) / 6, 0
        assert list((await analytics.Statistics(request)).connections) == [expected], "a minute nobody counted"


async def test_connections_by_region(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """A device connects after a minute and a half and stays; its attributes at that time count."""
    clock = ManualClock(AUTUMN_MS + 5 * MINUTE_MS)
    async with running_service(log, clickhouse, tmp_path, clock, "Europe/Berlin") as analytics:
        await log.append([connection_counts(AUTUMN_MS + n * MINUTE_MS, {APP: 1}, "key") for n in range(5)])
        await log.append([device(3, attributes={"region": "north"})])
        await log.append([session(3, Session.SESSION_EVENT_KIND_OPENED, AUTUMN_MS + 90_000)])
        request = statistics_request(CONNECTIONS, **REGIONS_TODAY)
        expected = [ConnectionsRow(info="north", average=3 / 5, maximum=1, minimum=0)]
        assert list((await analytics.Statistics(request)).connections) == expected
        await log.append([device(3, time_ms=T0 + 1, attributes={"region": "south"})])
        assert list((await analytics.Statistics(request)).connections) == expected
        clock.move(60)
        expected[0].average = 3 / 6
        assert list((await analytics.Statistics(request)).connections) == expected, "its gateway is gone"


SCOPES = {
    TimeScope.TIME_SCOPE_TODAY: ["2026-10-25"],
    TimeScope.TIME_SCOPE_YESTERDAY: ["2026-10-24"],
    TimeScope.TIME_SCOPE_LAST_SEVEN_DAYS: [f"2026-10-{day}" for day in range(19, 26)],
}


@pytest.mark.parametrize("now_ms", [AUTUMN_MS, AUTUMN_MS + 25 * 60 * MINUTE_MS - 1])
async def test_scopes(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, now_ms: int) -> None:
    """Today begins and ends with the day of the service's zone; an unknown app has zeros."""
    async with running_service(log, clickhouse, tmp_path, ManualClock(now_ms), "Europe/Berlin") as analytics:
        for (scope, expected), kind in itertools.product(SCOPES.items(), (CONNECTIONS, USERS, LOGINS)):
            answer = await analytics.Statistics(statistics_request(kind, scope=scope))
            rows: list[Any] = [*answer.connections, *answer.users, *answer.logins]
            assert [row.date for row in rows] == expected
            zeros = dict.fromkeys((1, 2, 3, 4, 5, 6, 7, 30), 0)
            assert [dict(row.counts) for row in answer.logins] == [zeros] * len(answer.logins)
            if kind == USERS:
                continue
            answer = await analytics.Statistics(
                statistics_request(kind, scope=scope, category=Category.CATEGORY_REGION, info="nowhere")
            )
            found: list[Any] = [*answer.connections, *answer.logins]
            assert {row.info for row in found} == {"nowhere"}


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"kind": 0}, "kind"),
    ({"kind": 9}, "kind"),
    ({"kind": CONNECTIONS}, "period"),
    ({"kind": CONNECTIONS, "scope": 0}, "period"),
    ({"kind": CONNECTIONS, "dates": dates("2026-02-30", "2026-03-01")}, "from"),
    ({"kind": CONNECTIONS, "dates": dates("2026-02-01", "20260301")}, "to"),
    ({"kind": CONNECTIONS, "dates": dates("2026-02-02", "2026-02-01")}, "from is later"),
    ({"kind": CONNECTIONS, "dates": dates("2025-01-01", "2026-02-05")}, "401 days"),
    ({"kind": CONNECTIONS, "dates": dates("0001-01-01", "0001-01-02")}, "1970"),
    ({"kind": CONNECTIONS, "scope": 1, "category": 1}, "info"),
    ({"kind": CONNECTIONS, "scope": 1, "category": 9, "info": "all"}, "category"),
    ({"kind": USERS, "scope": 1, "category": 1, "info": "all"}, "category"),
    ({"kind": LOGINS, "scope": 1, "category": 6, "info": "all"}, "category"),
    ({"kind": LOGINS, "scope": 1, "category": 7, "info": "all"}, "category"),
    ({"kind": LOGINS, "scope": 1, "category": 8, "info": "all"}, "category"),
    ({"kind": BROADCASTS, "msgid": 2**63}, "msgid"),
    ({"kind": BROADCASTS, "msgid": 5, "category": 1}, "info"),
]


async def test_invalid_requests(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    async with running_service(log, clickhouse, tmp_path) as analytics:
        for fields, problem in INVALID:
            with pytest.raises(InputError, match=problem):
                await analytics.Statistics(StatisticsRequest(appkey=APP, **fields))


async def test_old_facts_are_dropped(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    now_ms = await value(clickhouse, "SELECT toUnixTimestamp64Milli(now64(3))")
    await apply_retention(clickhouse, RetentionDays(400))
    new_records = []
    for n, age in enumerate((1, 3, 399, 401, 431)):
        at = now_ms - age * DAY_MS
        new_records += [
            device(n, time_ms=at, registered_ms=at),
            outcomes(1, app_outcomes(5, [n], Outcome.OUTCOME_KIND_RECEIVED, at)),
            session(n, Session.SESSION_EVENT_KIND_LOGGED_IN, at),
            connection_counts(at // MINUTE_MS * MINUTE_MS, {APP: 1}),
        ]
    await ingest(log, clickhouse, tmp_path, new_records)
    left = {"deliveries": 3, "push_outcomes": 1, "sessions": 4, "connection_counts": 3, "acks": 1, "devices": 5}
    for table, count in left.items():
        await clickhouse.command(f"OPTIMIZE TABLE {table} FINAL")
        assert await value(clickhouse, f"SELECT count() FROM {table}") == count, table

    await apply_retention(clickhouse, RetentionDays(100))
    assert "toIntervalDay(130)" in await value(
        clickhouse, "SELECT engine_full FROM system.tables WHERE database = currentDatabase() AND name = 'sessions'"
    )
    await apply_retention(clickhouse, RetentionDays(100))
    mutations = "SELECT count() FROM system.mutations WHERE database = currentDatabase() AND table = 'sessions'"
    done = await value(clickhouse, mutations)
    await apply_retention(clickhouse, RetentionDays(100))
    assert await value(clickhouse, mutations) == done, "what is so already is not changed again"


async def test_connections_by_region_when_a_gateway_dies(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """g1 dies in the middle of a minute; one of its two devices reconnects to g2, which has a third device."""
    clock = ManualClock(AUTUMN_MS + 5 * MINUTE_MS)
    opened = Session.SESSION_EVENT_KIND_OPENED
    async with running_service(log, clickhouse, tmp_path, clock, "Europe/Berlin") as analytics:
        await log.append([device(n, attributes={"region": f"r{n}"}) for n in (1, 2, 3)])
        await log.append([connection_counts(AUTUMN_MS + n * MINUTE_MS, {APP: 2}, "g1") for n in range(2)])
        await log.append([connection_counts(AUTUMN_MS + n * MINUTE_MS, {APP: 1 + n // 2}, "g2") for n in range(5)])
        before_ms, moved_ms = AUTUMN_MS - 5_000, AUTUMN_MS + 100_000
        for number, gateway, at_ms in ((1, "g1", before_ms), (2, "g1", before_ms), (3, "g2", before_ms)):
            await log.append([session(number, opened, at_ms, connection=number, gateway=gateway)])
        await log.append([session(1, opened, moved_ms, connection=4, gateway="g2")])
        request = statistics_request(CONNECTIONS, **REGIONS_TODAY)
        rows = (await analytics.Statistics(request)).connections
    assert list(rows) == [
        ConnectionsRow(info="r1", average=1, maximum=1, minimum=1),
        ConnectionsRow(info="r2", average=2 / 5, maximum=1, minimum=0),
        ConnectionsRow(info="r3", average=1, maximum=1, minimum=1),
    ]


async def test_a_log_in_that_is_ingested_again_counts_under_one_value(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path
) -> None:
    """A store that has lost its rows is filled again after the device has changed its attributes."""
    today_by_brand = {**REGIONS_TODAY, "category": Category.CATEGORY_BRAND}
    by_brand = statistics_request(LOGINS, **today_by_brand)
    async with running_service(log, clickhouse, tmp_path, ManualClock(T0)) as analytics:
        await log.append([device(1, attributes={"brand": "Mi"})])
        await analytics.Statistics(by_brand)
        await log.append([session(1, Session.SESSION_EVENT_KIND_LOGGED_IN, T0)])
        rows = (await analytics.Statistics(by_brand)).logins
        assert [(row.info, row.counts[1]) for row in rows] == [("Mi", 1)]
        await log.append([device(1, time_ms=T0 + 1, attributes={"brand": "Oppo"})])
        await analytics.Statistics(by_brand)
    for table in ("ingesters", "login_days"):
        await clickhouse.command(f"TRUNCATE TABLE {table}")
    async with running_service(log, clickhouse, tmp_path, ManualClock(T0)) as analytics:
        rows = (await analytics.Statistics(by_brand)).logins
        assert [(row.info, row.counts[1]) for row in rows] == [("Oppo", 1)]
