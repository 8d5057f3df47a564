"""Days on which clocks change, and a change of the service's time zone between two starts."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from analytics.statistics.logins import count_days
from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import StatisticsKind, StatisticsRequest, TimeScope, UserKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from tests.analytics.ingestion.test_crashes import CrashError
from tests.analytics.records import APP, connection_counts, device, session
from tests.analytics.service import ingest, running_service

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SPANS = {
    TimeScope.TIME_SCOPE_TODAY: (0, 0),
    TimeScope.TIME_SCOPE_YESTERDAY: (1, 1),
    TimeScope.TIME_SCOPE_LAST_SEVEN_DAYS: (6, 0),
}
"""How many days ago the first and the last day of a scope were."""


def ms_at(zone: str, text: str, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)


def local_date(time_ms: int, zone: str) -> date:
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(ZoneInfo(zone)).date()


def device_command(kind: StatisticsKind.ValueType, scope: TimeScope.ValueType, **fields: Any) -> StatisticsRequest:
    return StatisticsRequest(appkey=APP, kind=kind, scope=scope, **fields)


MOMENTS = [
    *(("Europe/Berlin", f"2026-03-{day}") for day in ("28 23:59", "29 00:00", "29 01:59", "29 03:00", "30 00:00")),
    *(("Europe/Berlin", f"2026-10-{day}") for day in ("25 00:00", "25 02:30", "25 23:59", "26 00:00", "31 12:00")),
    *(("Australia/Lord_Howe", f"2026-04-{day}") for day in ("05 01:45", "05 12:00", "06 00:00", "11 00:00")),
    *(("America/Santiago", f"2026-{day}") for day in ("09-06 01:00", "09-06 23:59", "04-04 23:30", "04-05 00:00")),
    *(("America/Havana", f"2026-{day}") for day in ("11-01 00:30", "11-01 12:00", "03-08 01:00", "03-07 23:59")),
]
"""Where clocks change by an hour, by half an hour, and at midnight: it comes twice, or never."""


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize(("zone", "text"), MOMENTS)
@pytest.mark.parametrize("scope", SPANS)
def test_days_contain_the_moments_of_their_date(zone: str, text: str, fold: int, scope: TimeScope.ValueType) -> None:
    """A day contains exactly the moments with its date in the time zone."""
    now_ms = ms_at(zone, text, fold)
    days = StatisticsQuery.of(device_command(StatisticsKind.STATISTICS_KIND_LOGINS, scope), now_ms, ZoneInfo(zone)).days
    first, last = SPANS[scope]
    today = date.fromisoformat(text[:10])
    assert [day.date for day in days] == [(today - timedelta(ago)).isoformat() for ago in range(first, last - 1, -1)]
    for day in days:
        inside = [local_date(time_ms, zone).isoformat() for time_ms in (day.start_ms, day.end_ms - 1)]
        outside = [local_date(time_ms, zone).isoformat() for time_ms in (day.start_ms - 1, day.end_ms)]
        assert inside == [day.date, day.date]
        assert outside[0] < day.date < outside[1]
    assert all(one.end_ms == other.start_ms for one, other in pairwise(days))


HOURS_GONE = [
    ("2026-10-25 02:30", 0, 2.5),
    ("2026-10-25 02:30", 1, 3.5),
    ("2026-10-25 12:00", 0, 13),
    ("2026-03-29 03:00", 0, 2),
    ("2026-03-29 12:00", 0, 11),
]


@pytest.mark.parametrize(("text", "fold", "hours"), HOURS_GONE)
async def test_a_day_that_is_not_over(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, text: str, fold: int, hours: float
) -> None:
    """Ten devices are connected all the time, and five more in the last hour."""
    now_ms, midnight_ms = ms_at("Europe/Berlin", text, fold), ms_at("Europe/Berlin", text[:10])
    assert now_ms - midnight_ms == hours * HOUR_MS
    marks = range(midnight_ms - HOUR_MS, now_ms, MINUTE_MS)
    counts = [connection_counts(mark, {APP: 15 if mark >= now_ms - HOUR_MS else 10}) for mark in marks]
    times = [midnight_ms - 1, midnight_ms, now_ms - HOUR_MS, now_ms - 1]
    people = [device(number, registered_ms=time_ms) for number, time_ms in enumerate(times)]
    logins = [session(number, Session.SESSION_EVENT_KIND_LOGGED_IN, time_ms) for number, time_ms in enumerate(times)]
    async with running_service(log, clickhouse, tmp_path, ManualClock(now_ms), "Europe/Berlin") as analytics:
        await log.append([*counts, *people, *logins])
        for scope, (first, last) in SPANS.items():
            new = [0, 0, 0, 0, 0, 1, 3][6 - first : 7 - last]
            request = device_command(StatisticsKind.STATISTICS_KIND_LOGINS, scope)
            found = (await analytics.Statistics(request)).logins
            assert [row.counts[1] for row in found] == new
            assert found[-1].counts[7] == (1 if last else 4)
            request = device_command(StatisticsKind.STATISTICS_KIND_USERS, scope, user_kind=UserKind.USER_KIND_NEW)
            assert [row.count for row in (await analytics.Statistics(request)).users] == new
        request = device_command(StatisticsKind.STATISTICS_KIND_CONNECTIONS, TimeScope.TIME_SCOPE_TODAY)
        (row,) = (await analytics.Statistics(request)).connections
        assert row.average == pytest.approx((10 * (hours - 1) + 15) / hours)
        assert (row.maximum, row.minimum) == (15, 10)


class CrashingStore:
    """A store with a crash before or after the n-th statement."""

    def __init__(self, clickhouse: ClickHouse, dies_at: int, after: bool) -> None:
        self._clickhouse = clickhouse
        self._left = dies_at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clickhouse, name)

    async def command(self, sql: str, parameters: Any = None) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise CrashError
        await self._clickhouse.command(sql, parameters)
        if self._left == 0:
            raise CrashError


NOON_MS = ms_at("UTC", "2026-11-10 12:00")
LOGINS = [
    (1, ms_at("UTC", "2026-11-09 23:30")),
    (2, ms_at("UTC", "2026-11-10 00:30")),
    (3, ms_at("UTC", "2026-11-10 10:30")),
    (4, ms_at("UTC", "2026-11-10 11:30")),
]
BY_DAY = {
    "UTC": {"2026-11-09": 1, "2026-11-10": 3},
    "America/New_York": {"2026-11-09": 2, "2026-11-10": 2},
    "Pacific/Kiritimati": {"2026-11-10": 2, "2026-11-11": 2},
}


async def logged_in(log: SqliteLog, clickhouse: ClickHouse, directory: Path, zone: str) -> dict[str, int]:
    """Return the devices by day, as counted by a service that starts in this zone."""
    request = device_command(StatisticsKind.STATISTICS_KIND_LOGINS, TimeScope.TIME_SCOPE_LAST_SEVEN_DAYS)
    async with running_service(log, clickhouse, directory, ManualClock(NOON_MS), zone) as analytics:
        rows = (await analytics.Statistics(request)).logins
    assert {row.date: row.counts[7] for row in rows}.popitem()[1] == sum(BY_DAY[zone].values())
    return {row.date: row.counts[1] for row in rows if row.counts[1]}


def log_in_sessions(logins: Sequence[tuple[int, int]]) -> list[Any]:
    return [session(number, Session.SESSION_EVENT_KIND_LOGGED_IN, time_ms) for number, time_ms in logins]


async def test_a_change_of_the_zone_between_two_starts(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    """Stored log-ins are counted again by days of the new zone, and later ones by these days only."""
    await count_days(clickhouse, ZoneInfo("UTC"))
    await ingest(log, clickhouse, tmp_path, log_in_sessions(LOGINS[:2]))
    await count_days(clickhouse, ZoneInfo("America/New_York"))
    await ingest(log, clickhouse, tmp_path, log_in_sessions(LOGINS[2:]))
    for zone in ("America/New_York", "Pacific/Kiritimati", "UTC", "UTC"):
        assert await logged_in(log, clickhouse, tmp_path, zone) == BY_DAY[zone]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_during_a_change_of_the_zone(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, after: bool
) -> None:
    """Wherever the crash is, the next start counts every log-in."""
    await count_days(clickhouse, ZoneInfo("UTC"))
    await ingest(log, clickhouse, tmp_path, log_in_sessions(LOGINS))
    zones = ["America/New_York", "UTC"]
    died = 0
    while True:
        zone = zones[died % 2]
        try:
            await count_days(CrashingStore(clickhouse, died + 1, after), ZoneInfo(zone))  # type: ignore[arg-type]
        except CrashError:
            died += 1
            assert await logged_in(log, clickhouse, tmp_path, zone) == BY_DAY[zone]
        else:
            break
    assert died >= 4
