"""Distinct devices that logged in within some days up to a date: exact counts, from sets of devices by day.

Merging the sets of thirty days for every value of a category takes long with millions of devices, so the counts of a
date are stored. Their version is the number of log-ins in the sets they were made of: further log-ins of those days
make them invalid. For today, the date that still gets log-ins, the sets of the days before it are stored, each device
in the band of its latest log-in, and only today's own set is merged with them.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql

WINDOWS = (1, 2, 3, 4, 5, 6, 7, 30)
"""Days, the date included."""

_LONGEST = max(WINDOWS)
_DATES_AT_ONCE = 2
_BANDS = range(1, len(WINDOWS))

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
WHERE appkey = {appkey:String} AND category = {category:String} AND day IN {days:Array(Date32)}
"""
Counts = Mapping[date, Mapping[str, Sequence[int]]]
"""By date and value, the number of devices in each window; dates and values without log-ins are left out."""


class LoginCounts(NamedTuple):
    """Counts of the log-ins of one app by one category; category "" has one value, "", for all devices."""

    clickhouse: ClickHouse
    appkey: str
    category: str

    async def between(self, first: date, last: date) -> Counts:
        """Return the counts for the dates from `first` to `last`, both included."""
        rows, versions, counts = await self._known(first, last)
        befores = {day: version - rows.get(day, 0) for day, version in versions.items() if day not in counts}
        stored = await self._stored_befores(befores)
        missing = [day for day in befores if day not in stored]
        if len(missing) == 1:
            await self._store_before(missing[0], befores[missing[0]])
            stored.add(missing.pop())
        for day in stored:
            counts[day] = await self._over_stored_days(day, befores[day])
        return {**counts, **await self._store({day: versions[day] for day in missing})}

    async def prepare(self, first: date, last: date) -> None:
        """Store what `between` needs for these dates when further log-ins of the last one have come."""
        rows, versions, counts = await self._known(first, last)
        if any(day not in counts for day in versions if day != last):
            await self._store({day: version for day, version in versions.items() if day not in counts})
        before = versions.get(last, 0) - rows.get(last, 0)
        if last in versions and not await self._stored_befores({last: before}):
            await self._store_before(last, before)

    async def _known(self, first: date, last: date) -> tuple[dict[date, int], dict[date, int], dict[date, Any]]:
        """Return the number of log-ins by day, and the versions and stored counts of the dates with log-ins."""
        rows = await self._login_rows(first, last)
        dates = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        versions = {day: version for day in dates if (version := _rows_of_window(rows, day))}
        return rows, versions, dict(await self._stored(versions))

    async def _login_rows(self, first: date, last: date) -> dict[date, int]:
        return {day: int(count) for day, count in await self._query(_ROWS, first=first, last=last)}

    async def _stored(self, versions: Mapping[date, int]) -> Counts:
        """Return the counts that are stored with these versions."""
        stored: dict[date, dict[str, Sequence[int]]] = {}
        if versions:
            for day, info, counts, version in await self._query(_STORED, first=min(versions), last=max(versions)):
                if versions.get(day) == version:
                    stored.setdefault(day, {})[info] = counts
        return stored

    async def _store(self, versions: Mapping[date, int]) -> Counts:
        """Count and store some dates, and return their counts."""
        counts: dict[date, Mapping[str, Sequence[int]]] = {}
        for start in range(0, len(versions), _DATES_AT_ONCE):
            some = dict(list(versions.items())[start : start + _DATES_AT_ONCE])
            await self._store_together(some)
            counts.update(await self._stored(some))
        return counts

    async def _store_together(self, versions: Mapping[date, int]) -> None:
        parameters = {"dates": list(versions), "versions": list(versions.values())}
        period = {"first": min(versions), "last": max(versions)}
        counts = ", ".join(f"maxIf(bitmapCardinality(devices), band <= {n})" for n in range(len(WINDOWS)))
        query = sql(__package__, "store_login_counts", windows=str([*WINDOWS]), longest=str(_LONGEST), counts=counts)
        await self.clickhouse.store(query, {**self._names, **period, **parameters})

    async def _stored_befores(self, versions: Mapping[date, int]) -> set[date]:
        """Return the dates whose sets of the days before are stored with these versions; version 0 needs no sets."""
        stored = set(await self._query(_BEFORES, days=list(versions))) if versions else set()
        return {day for day, version in versions.items() if not version or (day, version) in stored}

    async def _store_before(self, day: date, version: int) -> None:
        query = sql(__package__, "store_login_before", windows=str([*WINDOWS]), longest=str(_LONGEST))
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
    return sql(
        __package__,
        "login_counts_of_today",
        only=", ".join(f"only_{band}" for band in _BANDS),
        bands=", ".join(f"groupBitmapMergeStateIf(devices, band = {band}) AS band_{band}" for band in _BANDS),
        only_counts=", ".join(f"bitmapAndnotCardinality(band_{band}, of_day) AS only_{band}" for band in _BANDS),
    )


def _rows_of_window(rows: Mapping[date, int], day: date) -> int:
    """Return the number of log-ins in the longest window up to the day."""
    return sum(rows.get(day - timedelta(days=age), 0) for age in range(_LONGEST))
