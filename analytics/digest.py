"""A digest of the store's contents, by which a store is compared with one that was rebuilt from the log.

It covers every column that an answer reads, and the sums that the ingestion makes. The sets and counts that ClickHouse
derives from these rows are left out.
"""

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from analytics.ingestion.tables.catalogue import TABLES
from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import ATTRIBUTES
from analytics.store.retention_days import AGES, CONTENTS

LATEST_ONLY = "devices"
"""The topic of this table is compacted, so only the latest state of each device can be rebuilt."""

_ATTRIBUTES = frozenset(ATTRIBUTES)
_IGNORED = {"deliveries": _ATTRIBUTES, "registrations": frozenset({"token", "kept"})}
"""By table, columns that are not compared, as no answer reads them."""

_OF_RESOLVED = _ATTRIBUTES | {"attributes_until"}
"""Columns of `push_values` that are compared only for pushes whose start has `attributes_until`."""

_CONNECTIONS = """
SELECT count(), sum(cityHash64(appkey, category, info, gateway, minute, total)) FROM (
  SELECT appkey, category, info, gateway, minute, sum(change) AS total FROM connection_changes
  WHERE ingester IN (SELECT identity FROM ingesters FINAL) AND minute >= fromUnixTimestamp64Milli({since_ms:Int64})
  GROUP BY appkey, category, info, gateway, minute HAVING total != 0) AS changes
INNER JOIN (SELECT gateway, max(minute) AS last FROM connection_counts GROUP BY gateway) AS lives USING (gateway)
WHERE minute <= last
"""
"""Connections up to each gateway's last count: later changes affect no answer, and a restart may have lost them."""

_TIMES = {**AGES, "registrations": "registered"}
"""The columns with the time of a row, where it is not `time`."""

_TOKENS = """
SELECT count(), sum(cityHash64(appkey, device, token)) FROM (SELECT DISTINCT appkey, device, token FROM device_tokens)
"""


async def counts(clickhouse: ClickHouse) -> dict[str, int]:
    """Return the number of different rows in each table."""
    return {table: (await clickhouse.rows(f"SELECT count() FROM {table} FINAL"))[0][0] for table in sorted(TABLES)}  # noqa: S608


_ALL: Mapping[str, int] = MappingProxyType({})


async def digest(clickhouse: ClickHouse, since_ms: Mapping[str, int] = _ALL, contents_since_ms: int = 0) -> str:
    """Return the same digest for the same contents, whatever batches they were inserted in.

    Rows from before the `since_ms` of their table (milliseconds since 1970 UTC) are left out, but for LATEST_ONLY, and
    so are contents of pushes from before `contents_since_ms`.
    """
    lines = await table_digests(clickhouse, since_ms, contents_since_ms)
    return hashlib.sha256("".join(f"{table} {found}\n" for table, found in lines.items()).encode()).hexdigest()


async def table_digests(
    clickhouse: ClickHouse, since_ms: Mapping[str, int] = _ALL, contents_since_ms: int = 0
) -> dict[str, str]:
    """Return what `digest` is made of: the number of rows of each table, and a hash of them."""
    queries = {table: _hash_query(table) for table in sorted(TABLES)}
    queries |= {"connection_changes": _CONNECTIONS, "device_tokens": _TOKENS}
    found: dict[str, Sequence[Any]] = {}
    for table, query in queries.items():
        times = {"since_ms": since_ms.get(table, 0), "contents_since_ms": contents_since_ms}
        found[table] = (await clickhouse.rows(query, times))[0]
    return {table: f"{count} {total}" for table, (count, total) in found.items()}


def compared_columns(table: str) -> list[str]:
    """Return the columns in which a rebuilt store has what the live one has."""
    ignored = _IGNORED.get(table, frozenset())
    return [
        name
        for name in TABLES[table].schema.names
        if name not in ignored and not (name.startswith("_") and name != "_event_id")
    ]


def _hash_query(table: str) -> str:
    columns = ", ".join(compared_columns(table))
    hashed = ", ".join(_hashed(table, name) for name in compared_columns(table))
    rows = f"SELECT {columns}, _offset FROM {table} FINAL"  # noqa: S608
    if table != LATEST_ONLY:
        rows += f" WHERE {_TIMES.get(table, 'time')} >= fromUnixTimestamp64Milli({{since_ms:Int64}})"
    else:
        rows += " ORDER BY appkey, partition, token, _offset DESC LIMIT 1 BY appkey, partition, token"
    return f"SELECT count(), sum(cityHash64({hashed})) FROM ({rows})"  # noqa: S608


def _hashed(table: str, column: str) -> str:
    if table == "push_values" and column in _OF_RESOLVED:
        return f"if(attributes_until > 0, cityHash64({column}), 0)"
    if column in CONTENTS.get(table, ()):
        return f"if(time >= fromUnixTimestamp64Milli({{contents_since_ms:Int64}}), {column}, '')"
    return column
