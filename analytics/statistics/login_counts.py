"""Distinct devices that logged in within some days up to a date, exact, from sets of devices by day.

Putting the sets of thirty days together for every value of a category takes long where there are millions of devices,
so the counts of a date are kept. The version of what is kept is the number of log-ins in the sets it was made of: more
log-ins of those days make it void. For the one date that still gets log-ins, today, the days before it are kept
as sets, by when each device logged in last, and only the date's own set is laid over them.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

from analytics.store.clickhouse import ClickHouse

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
_KEPT = """
SELECT day, info, counts, version FROM login_counts FINAL
WHERE appkey = {appkey:String} AND category = {category:String} AND day >= {first:Date32} AND day <= {last:Date32}
"""
_KEEP = f"""
INSERT INTO login_counts (appkey, category, day, info, counts, version)
WITH bands AS (
  SELECT info, place.1 AS date, arrayCount(window -> window <= place.2, {list(WINDOWS)}) AS band,
    groupBitmapMergeState(devices) AS devices
  FROM login_days ARRAY JOIN arrayMap(age -> (day + age, age), arrayFilter(
    age -> has({{dates:Array(Date32)}}, day + age), range({_LONGEST}))) AS place
  WHERE appkey = {{appkey:String}} AND category = {{category:String}}
    AND day > {{first:Date32}} - {_LONGEST} AND day <= {{last:Date32}}
  GROUP BY info, date, band),
since AS (
  SELECT info, date, band, groupBitmapMergeState(devices) OVER (
    PARTITION BY info, date ORDER BY band ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS devices
  FROM bands)
SELECT {{appkey:String}}, {{category:String}}, date, info,
  [{", ".join(f"maxIf(bitmapCardinality(devices), band <= {n})" for n in range(len(WINDOWS)))}],
  arrayElement({{versions:Array(UInt64)}}, indexOf({{dates:Array(Date32)}}, date))
FROM since GROUP BY info, date
"""  # noqa: S608
_HAS_BEFORE = """
SELECT count() FROM login_before
WHERE appkey = {appkey:String} AND category = {category:String} AND day = {day:Date32} AND version = {version:UInt64}
"""
_KEEP_BEFORE = f"""
INSERT INTO login_before (appkey, category, day, info, band, version, devices)
WITH bands AS (
  SELECT info, arrayCount(window -> window <= dateDiff('day', day, {{day:Date32}}), {list(WINDOWS)}) AS band,
    groupBitmapMergeState(devices) AS devices
  FROM login_days
  WHERE appkey = {{appkey:String}} AND category = {{category:String}}
    AND day > {{day:Date32}} - {_LONGEST} AND day < {{day:Date32}}
  GROUP BY info, band)
SELECT {{appkey:String}}, {{category:String}}, {{day:Date32}}, info, band, {{version:UInt64}},
  bitmapAndnot(devices, groupBitmapMergeState(devices) OVER (
    PARTITION BY info ORDER BY band ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
FROM bands
"""  # noqa: S608
_OVER_BEFORE = f"""
SELECT info, arrayCumSum([on_day, {", ".join(f"only_{band}" for band in _BANDS)}]) FROM (
  SELECT info, groupBitmapMergeStateIf(devices, band = 0) AS of_day, bitmapCardinality(of_day) AS on_day,
    {", ".join(f"groupBitmapMergeStateIf(devices, band = {band}) AS band_{band}" for band in _BANDS)},
    {", ".join(f"bitmapAndnotCardinality(band_{band}, of_day) AS only_{band}" for band in _BANDS)}
  FROM (
    SELECT info, band, devices FROM login_before FINAL
    WHERE appkey = {{appkey:String}} AND category = {{category:String}} AND day = {{day:Date32}}
      AND version = {{version:UInt64}}
    UNION ALL
    SELECT info, 0 AS band, devices FROM login_days
    WHERE appkey = {{appkey:String}} AND category = {{category:String}} AND day = {{day:Date32}})
  GROUP BY info)
"""  # noqa: S608

Counts = Mapping[date, Mapping[str, Sequence[int]]]
"""By date and value, the devices of each window; without dates and values that nobody logged in for."""


class Logins(NamedTuple):
    """The log-ins of one app by one category; "" has one value, "", for all of them."""

    clickhouse: ClickHouse
    appkey: str
    category: str

    async def counts(self, first: date, last: date) -> Counts:
        """For the dates from `first` to `last`."""
        rows = await self._rows(first, last)
        dates = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        versions = {day: version for day in dates if (version := _within(rows, day))}
        counts = dict(await self._kept(versions))
        missing = [day for day in versions if day not in counts]
        if len(missing) == 1:
            (day,) = missing
            return counts | {day: await self._over_before(day, versions[day] - rows.get(day, 0))}
        for start in range(0, len(missing), _DATES_AT_ONCE):
            some = {day: versions[day] for day in missing[start : start + _DATES_AT_ONCE]}
            await self._keep(some)
            counts |= await self._kept(some)
        return counts

    async def _rows(self, first: date, last: date) -> dict[date, int]:
        return {day: int(count) for day, count in await self._ask(_ROWS, first=first, last=last)}

    async def _kept(self, versions: Mapping[date, int]) -> Counts:
        """What is kept of these versions."""
        kept: dict[date, dict[str, Sequence[int]]] = {}
        if versions:
            for day, info, counts, version in await self._ask(_KEPT, first=min(versions), last=max(versions)):
                if versions.get(day) == version:
                    kept.setdefault(day, {})[info] = counts
        return kept

    async def _keep(self, versions: Mapping[date, int]) -> None:
        parameters = {"dates": list(versions), "versions": list(versions.values())}
        period = {"first": min(versions), "last": max(versions)}
        await self.clickhouse.command(_KEEP, {**self._names, **period, **parameters})

    async def _over_before(self, day: date, version: int) -> Mapping[str, Sequence[int]]:
        """The day's counts; `version` is that of the days before it."""
        before = {"day": day, "version": version}
        if version and not (await self._ask(_HAS_BEFORE, **before))[0][0]:
            await self.clickhouse.command(_KEEP_BEFORE, {**self._names, **before})
        return {info: list(counts) for info, counts in await self._ask(_OVER_BEFORE, **before)}

    @property
    def _names(self) -> dict[str, object]:
        return {"appkey": self.appkey, "category": self.category}

    async def _ask(self, sql: str, **parameters: object) -> Sequence[Sequence[Any]]:
        return await self.clickhouse.rows(sql, {**self._names, **parameters})


def _within(rows: Mapping[date, int], day: date) -> int:
    """The rows of the longest window up to the day."""
    return sum(rows.get(day - timedelta(days=age), 0) for age in range(_LONGEST))
