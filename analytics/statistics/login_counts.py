"""Distinct devices that logged in within some days up to a date: exact counts, from sets of devices by day.

Merging the sets of thirty days for every value of a category takes long with millions of devices, so the counts of a
date are stored. Their version is the number of log-ins in the sets they were made of: further log-ins of those days
make them invalid. For today, the one date that still gets log-ins, the sets of the days before it are stored, each
device in the band of its latest log-in, and only today's own set is merged with them.
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
_HAS_BEFORE = """
SELECT count() FROM login_before
WHERE appkey = {appkey:String} AND category = {category:String} AND day = {day:Date32} AND version = {version:UInt64}
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
        rows = await self._login_rows(first, last)
        dates = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        versions = {day: version for day in dates if (version := _rows_of_window(rows, day))}
        counts = dict(await self._stored(versions))
        missing = [day for day in versions if day not in counts]
        if len(missing) == 1:
            (day,) = missing
            return counts | {day: await self._over_stored_days(day, versions[day] - rows.get(day, 0))}
        for start in range(0, len(missing), _DATES_AT_ONCE):
            some = {day: versions[day] for day in missing[start : start + _DATES_AT_ONCE]}
            await self._store(some)
            counts |= await self._stored(some)
        return counts

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

    async def _store(self, versions: Mapping[date, int]) -> None:
        parameters = {"dates": list(versions), "versions": list(versions.values())}
        period = {"first": min(versions), "last": max(versions)}
        counts = ", ".join(f"maxIf(bitmapCardinality(devices), band <= {n})" for n in range(len(WINDOWS)))
        query = sql(__package__, "store_login_counts", windows=str([*WINDOWS]), longest=str(_LONGEST), counts=counts)
        await self.clickhouse.store(query, {**self._names, **period, **parameters})

    async def _over_stored_days(self, day: date, version: int) -> Mapping[str, Sequence[int]]:
        """Return the day's counts, from its own set and those of the days before it, which have this version."""
        parameters = {"day": day, "version": version}
        if version and not (await self._query(_HAS_BEFORE, **parameters))[0][0]:
            query = sql(__package__, "store_login_before", windows=str([*WINDOWS]), longest=str(_LONGEST))
            await self.clickhouse.store(query, {**self._names, **parameters})
        return {info: list(counts) for info, counts in await self._query(_counts_of_today(), **parameters)}

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
