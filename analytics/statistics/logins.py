"""Statistics of log-ins by days of the service's time zone, and the sets of devices by day that they count."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import LoginsRow
from services.domain.statistics_rows import LOGIN_DAYS

# Distinct devices that logged in within some days up to a date: exact counts, from sets of devices by day.
#
# Merging the sets of thirty days for every value of a category takes long with millions of devices, so the counts of
# a date are stored. Their version is the number of log-ins in the sets they were made of: further log-ins of those
# days make them invalid. For today, the date that still gets log-ins, the sets of the days before it are stored, each
# device in the band of its latest log-in, and only today's own set is merged with them.

_LONGEST = max(LOGIN_DAYS)
_DATES_AT_ONCE = 2

_ROWS = f"""
SELECT day, sum(rows) FROM login_days
WHERE appkey = {{appkey:String}} AND category = {{category:String}}
  AND day > {{first:Date32}} - {_LONGEST} AND day <= {{last:Date32}}
GROUP BY day
"""  # noqa: S608
_STORED = """
SELECT day, info, counts, version FROM login_counts FINAL
WHERE appkey = {appkey:String} AND category = {category:String} AND day >= {first:Date32} AND day <= {last:Date32}
"""
_BEFORES = """
SELECT DISTINCT day, version FROM login_before
WHERE appkey = {appkey:String} AND category = {category:String} AND day >= {first:Date32} AND day <= {last:Date32}
"""
Counts = Mapping[date, Mapping[str, Sequence[int]]]
"""By date and value, the number of devices in each window; dates and values without log-ins are left out."""


class _KnownLogIns(NamedTuple):
    """What the store has for dates with log-ins in the longest window that ends on the date.

    `versions`: the log-ins in that window by date; `befores`: of these, the ones before the date; `counts`: stored
    counts with that version; `with_sets`: dates whose sets of earlier days are stored, or that need none.
    """

    versions: dict[date, int]
    befores: dict[date, int]
    counts: Counts
    with_sets: set[date]

    def missing(self) -> list[date]:
        return [day for day in self.versions if day not in self.counts]


class LoginCounts(NamedTuple):
    """Counts of the log-ins of one app by one category; category "" has one value, "", for all devices."""

    clickhouse: ClickHouse
    appkey: str
    category: str

    async def between(self, first: date, last: date) -> Counts:
        """Return the counts for the dates from `first` to `last`, both included."""
        known = await self._known(first, last)
        counts = dict(known.counts)
        with_sets = known.with_sets.intersection(known.missing())
        missing = [day for day in known.missing() if day not in with_sets]
        if len(missing) == 1:
            await self._store_before(missing[0], known.befores[missing[0]])
            with_sets.add(missing.pop())
        for day in with_sets:
            counts[day] = await self._over_stored_days(day, known.befores[day])
        return {**counts, **await self._store({day: known.versions[day] for day in missing})}

    async def prepare(self, first: date, last: date) -> None:
        """Store what `between` needs for these dates when further log-ins of the last one have come."""
        known = await self._known(first, last)
        if any(day != last for day in known.missing()):
            await self._store({day: known.versions[day] for day in known.missing()})
        if last in known.versions and last not in known.with_sets:
            await self._store_before(last, known.befores[last])

    async def _known(self, first: date, last: date) -> _KnownLogIns:
        login_rows, stored, stored_sets = await asyncio.gather(
            *(self._query(query, first=first, last=last) for query in (_ROWS, _STORED, _BEFORES))
        )
        rows = {day: int(count) for day, count in login_rows}
        dates = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        versions = {day: version for day in dates if (version := _rows_of_window(rows, day))}
        befores = {day: version - rows.get(day, 0) for day, version in versions.items()}
        sets = {(day, version) for day, version in stored_sets}
        with_sets = {day for day, version in befores.items() if not version or (day, version) in sets}
        return _KnownLogIns(versions, befores, _valid_counts(stored, versions), with_sets)

    async def _store(self, versions: Mapping[date, int]) -> Counts:
        """Count and store some dates, and return their counts."""
        counts: dict[date, Mapping[str, Sequence[int]]] = {}
        for start in range(0, len(versions), _DATES_AT_ONCE):
            some = dict(list(versions.items())[start : start + _DATES_AT_ONCE])
            await self._store_together(some)
            stored = await self._query(_STORED, first=min(some), last=max(some))
            counts.update(_valid_counts(stored, some))
        return counts

    async def _store_together(self, versions: Mapping[date, int]) -> None:
        parameters = {"dates": list(versions), "versions": list(versions.values())}
        period = {"first": min(versions), "last": max(versions)}
        counts = ", ".join(f"maxIf(bitmapCardinality(devices), band <= {n})" for n in range(len(LOGIN_DAYS)))
        query = sql(__package__, "store_login_counts", windows=str([*LOGIN_DAYS]), longest=str(_LONGEST), counts=counts)
        await self.clickhouse.store(query, {**self._names, **period, **parameters})

    async def _store_before(self, day: date, version: int) -> None:
        query = sql(__package__, "store_login_before", windows=str([*LOGIN_DAYS]), longest=str(_LONGEST))
        await self.clickhouse.store(query, {**self._names, "day": day, "version": version})

    async def _over_stored_days(self, day: date, version: int) -> Mapping[str, Sequence[int]]:
        """Return the day's counts, from its own set and the stored ones of the days before it."""
        found = await self._query(_counts_of_today(), day=day, version=version)
        return {info: list(counts) for info, counts in found}

    @property
    def _names(self) -> dict[str, object]:
        return {"appkey": self.appkey, "category": self.category}

    async def _query(self, query: str, **parameters: object) -> Sequence[Sequence[Any]]:
        return await self.clickhouse.rows(query, {**self._names, **parameters})


def _counts_of_today() -> str:
    bands = ", ".join(f"maxIf(only, band = {band})" for band in range(1, len(LOGIN_DAYS)))
    return sql(__package__, "login_counts_of_today", bands=bands)


def _valid_counts(stored: Sequence[Sequence[Any]], versions: Mapping[date, int]) -> Counts:
    """Return the counts from rows of `login_counts` whose versions are these."""
    valid: dict[date, dict[str, Sequence[int]]] = {}
    for day, info, counts, version in stored:
        if versions.get(day) == version:
            valid.setdefault(day, {})[info] = counts
    return valid


def _rows_of_window(rows: Mapping[date, int], day: date) -> int:
    """Return the number of log-ins in the longest window up to the day."""
    return sum(rows.get(day - timedelta(days=age), 0) for age in range(_LONGEST))


_NO_DEVICES = [0] * len(LOGIN_DAYS)
CATEGORIES = ("region", "carrier", "channel", "sdk_version", "brand")
"""The attributes by which log-ins are counted."""

LOGIN_DAYS_VIEW = "login_days_of_sessions"
"""The view that fills `login_days`; each start makes it anew if the zone is another one."""

_COMMENT = "SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = {view:String}"
_INGESTERS = "SELECT identity FROM ingesters FINAL LIMIT 1"


async def count_days(clickhouse: ClickHouse, zone: ZoneInfo) -> None:
    """Make ClickHouse collect log-ins, new and stored ones, by days of this zone, unless it does already.

    In a store without ingesters the stored log-ins are left out: it is filled from the log again, and devices whose
    attributes changed meanwhile would count under the old and the new ones.
    """
    rows = await clickhouse.rows(_COMMENT, {"view": LOGIN_DAYS_VIEW})
    if rows and rows[0][0] == zone.key:
        return
    by_day = _login_days(zone)
    await clickhouse.command(f"DROP VIEW IF EXISTS {LOGIN_DAYS_VIEW} SYNC")
    for table in ("login_days", "login_counts", "login_before"):
        await clickhouse.command(f"TRUNCATE TABLE {table}")
    await clickhouse.command(f"CREATE MATERIALIZED VIEW {LOGIN_DAYS_VIEW} TO login_days AS {by_day}")
    if await clickhouse.rows(_INGESTERS):
        await clickhouse.command(f"INSERT INTO login_days {by_day}")
    await clickhouse.command(f"ALTER TABLE {LOGIN_DAYS_VIEW} MODIFY COMMENT '{zone.key}'")


async def logins(clickhouse: ClickHouse, query: StatisticsQuery) -> list[LoginsRow]:
    """Return a row for each day; with a category and no value, one for each value that has log-ins."""
    first, last = (date.fromisoformat(day.date) for day in (query.days[0], query.days[-1]))
    counts = await LoginCounts(clickhouse, query.appkey, query.category).between(first, last)
    rows = []
    for one in query.days:
        found = counts.get(date.fromisoformat(one.date), {})
        wanted = sorted(found) if query.category and query.info is None else [query.info or ""]
        for info in wanted:
            of_info = dict(zip(LOGIN_DAYS, found.get(info, _NO_DEVICES), strict=True))
            rows.append(LoginsRow(date=one.date, info=info if query.category else None, counts=of_info))
    return rows


def _login_days(zone: ZoneInfo) -> str:
    values = ", ".join(f"toString({name})" for name in CATEGORIES)
    return sql(__package__, "login_days", zone=zone.key, categories=str(["", *CATEGORIES]), values=values)
