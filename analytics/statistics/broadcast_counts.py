"""Counts of whole broadcasts, stored with a version, so that the list of broadcasts is as fast as it is long.

Merging the sets of devices of a thousand broadcasts takes long with millions of devices, and nothing changes any more
in most of them. The version of a push is the number of outcomes and of events that its counts were made of: any
further one makes them invalid. It is read before the sets, so that counts may be newer than their version and are then
made once more, but never older.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql

_VERSIONS = """
SELECT msgid, [sum(outcomes), sum(sets), sum(events), sum(audiences)]
FROM (
  SELECT msgid, sum(rows) AS outcomes, uniqExact(kind, partition) AS sets, 0 AS events, 0 AS audiences
  FROM push_outcomes WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} GROUP BY msgid
  UNION ALL
  SELECT msgid, 0, 0, uniqExact(event, partition), 0
  FROM push_partitions WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} GROUP BY msgid
  UNION ALL
  SELECT msgid, 0, 0, 0, uniqExact(partition)
  FROM push_audiences WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} GROUP BY msgid)
GROUP BY msgid
"""
_STORED = """
SELECT msgid, version, counts FROM broadcast_counts FINAL
WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)}
"""
_TABLE = pa.schema(
    [
        ("appkey", pa.string()),
        ("msgid", pa.uint64()),
        ("version", pa.list_(pa.uint64())),
        ("counts", pa.list_(pa.uint64())),
    ]
)
Counts = Mapping[int, Sequence[int]]
"""By message id; a push without an audience and without outcomes is left out."""


async def broadcast_counts(clickhouse: ClickHouse, parameters: Mapping[str, Any]) -> Counts:
    """Return the counts of the pushes in the parameters of `counts_query`; count and store those that have changed."""
    found = await clickhouse.rows(_VERSIONS, parameters)
    versions = {msgid: list(version) for msgid, version in found}
    stored = await clickhouse.rows(_STORED, parameters)
    counts = {msgid: of_push for msgid, version, of_push in stored if versions.get(msgid) == list(version)}
    changed = [msgid for msgid in versions if msgid not in counts]
    if changed:
        found = await clickhouse.rows(counts_query("broadcasts_whole"), {**parameters, "msgids": changed})
        new = {msgid: of_push for msgid, *of_push in found}
        await _store(clickhouse, parameters["appkey"], versions, new)
        counts |= new
    return counts


def counts_query(name: str) -> str:
    """Return a query for counts from the sets of devices. Its parameters: appkey, msgids, and those of them on ios."""
    parts = {part: sql(__package__, f"broadcast_{part}") for part in ("sets", "final_sets", "counts")}
    return sql(__package__, name, **parts)


async def _store(clickhouse: ClickHouse, appkey: str, versions: Mapping[int, Sequence[int]], counts: Counts) -> None:
    rows = [
        {"appkey": appkey, "msgid": msgid, "version": versions[msgid], "counts": of_push}
        for msgid, of_push in counts.items()
    ]
    if rows:
        await clickhouse.insert("broadcast_counts", pa.Table.from_pylist(rows, schema=_TABLE), token="")
