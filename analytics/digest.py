"""A digest of the store's contents, by which a store is compared with one that was rebuilt from the log.

It covers every column that an answer reads, and the sums that the ingestion makes. The sets and counts that ClickHouse
derives from these rows are left out.
"""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from analytics.ingestion.tables.catalogue import TABLES
from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import ATTRIBUTES
from analytics.store.retention import HISTORY

LATEST_ONLY = "devices"
"""The topic of this table is compacted, so only the latest state of each device can be rebuilt."""

_ATTRIBUTES = frozenset(ATTRIBUTES)
_OF_PUSHES = frozenset({"title", "text", "audience_summary"})
_IGNORED = {
    **dict.fromkeys(("pushes", "task_pushes"), _OF_PUSHES),
    **dict.fromkeys(("device_commands", "actions"), frozenset({"details"})),
    "deliveries": _ATTRIBUTES,
    "registrations": frozenset({"token", "kept", "from_log"}),
    "sessions": frozenset({"from_log"}),
    "push_values": frozenset({"from_log"}),
}
"""By table, columns that are not compared: those of a later version, which rows of an earlier one lack or have in
another form, and those that no answer reads."""

_CONDITIONS = {
    "sessions": (
        _ATTRIBUTES,
        "_offset >= transform(_partition, {sessions:Array(UInt16)}, {session_ends:Array(UInt64)}, 0)",
    ),
    "registrations": (
        _ATTRIBUTES | {"registered"},
        "registered > fromUnixTimestamp64Milli({registered_ms:Int64}) OR {registered_ms:Int64} = 0",
    ),
    "push_values": (
        _ATTRIBUTES | {"attributes_until"},
        "attributes_until > 0"
        " AND _offset >= transform(_partition, {starts:Array(UInt16)}, {start_ends:Array(UInt64)}, 0)",
    ),
}
"""By table, columns compared only in rows under a condition; in others a rebuild loses them: see FormerRows."""

_CONNECTIONS = """
SELECT count(), sum(cityHash64(appkey, category, info, gateway, minute, total)) FROM (
  SELECT appkey, category, info, gateway, minute, sum(change) AS total FROM connection_changes
  WHERE reader IN (SELECT identity FROM readers FINAL) AND minute >= fromUnixTimestamp64Milli({since_ms:Int64})
  GROUP BY appkey, category, info, gateway, minute HAVING total != 0) AS changes
INNER JOIN (SELECT gateway, max(minute) AS last FROM connection_counts GROUP BY gateway) AS lives USING (gateway)
WHERE minute <= last
"""
"""Connections up to each gateway's last count: later changes affect no answer, and a restart may have lost them."""

_TOKENS = """
SELECT count(), sum(cityHash64(appkey, device, token)) FROM (SELECT DISTINCT appkey, device, token FROM device_tokens)
"""
_FORMER = "SELECT _partition, max(_offset) + 1 FROM {table} WHERE NOT from_log GROUP BY _partition"
_FORMER_REGISTRATIONS = "SELECT toUnixTimestamp64Milli(max(registered)) FROM registrations WHERE NOT from_log"


class FormerRows(NamedTuple):
    """Rows from versions without AttributeChanges, whose attributes and registration times compaction has lost.

    A store that is rebuilt from the log cannot have these values, so they are not compared.
    `session_ends` and `start_ends`: the offset after the last such row in each partition of `sessions` and `pushes`.
    `registered_ms`: the latest registration among such rows; 0: there is none.
    """

    session_ends: Mapping[int, int]
    start_ends: Mapping[int, int]
    registered_ms: int


NO_FORMER_ROWS = FormerRows(MappingProxyType({}), MappingProxyType({}), 0)


async def former_rows(clickhouse: ClickHouse) -> FormerRows:
    """Return the extent of the rows that former versions stored."""
    sessions, starts = [
        dict[int, int](await clickhouse.rows(_FORMER.format(table=table)))  # type: ignore[arg-type]
        for table in ("sessions", "push_values")
    ]
    return FormerRows(sessions, starts, (await clickhouse.rows(_FORMER_REGISTRATIONS))[0][0])


async def counts(clickhouse: ClickHouse) -> dict[str, int]:
    """Return the number of different rows in each table."""
    return {table: (await clickhouse.rows(f"SELECT count() FROM {table} FINAL"))[0][0] for table in sorted(TABLES)}  # noqa: S608


async def digest(clickhouse: ClickHouse, since_ms: int = 0, former: FormerRows = NO_FORMER_ROWS) -> str:
    """Return the same digest for the same contents, whatever batches they were inserted in.

    In tables with a retention, facts before `since_ms` (milliseconds since 1970 UTC) are left out. Attributes of
    `former` rows are left out, and connections by attributes too while these rows include sessions.
    """
    lines = await table_digests(clickhouse, since_ms, former)
    return hashlib.sha256("".join(f"{table} {found}\n" for table, found in lines.items()).encode()).hexdigest()


async def table_digests(
    clickhouse: ClickHouse, since_ms: int = 0, former: FormerRows = NO_FORMER_ROWS
) -> dict[str, str]:
    """Return what `digest` is made of: the number of rows of each table, and a hash of them."""
    parameters = {
        "since_ms": since_ms,
        "registered_ms": former.registered_ms,
        "sessions": list(former.session_ends),
        "session_ends": list(former.session_ends.values()),
        "starts": list(former.start_ends),
        "start_ends": list(former.start_ends.values()),
    }
    queries = {table: _hash_query(table) for table in sorted(TABLES)}
    if not former.session_ends:
        queries["connection_changes"] = _CONNECTIONS
    if not former.registered_ms:
        queries["device_tokens"] = _TOKENS
    found = {table: (await clickhouse.rows(query, parameters))[0] for table, query in queries.items()}
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
    rows = f"SELECT {columns}, _offset, _partition FROM {table} FINAL"  # noqa: S608
    if table in HISTORY:
        rows += f" WHERE {HISTORY[table]} >= fromUnixTimestamp64Milli({{since_ms:Int64}})"
    if table == LATEST_ONLY:
        rows += " ORDER BY appkey, partition, token, _offset DESC LIMIT 1 BY appkey, partition, token"
    return f"SELECT count(), sum(cityHash64({hashed})) FROM ({rows})"  # noqa: S608


def _hashed(table: str, column: str) -> str:
    columns, condition = _CONDITIONS.get(table, (frozenset(), ""))
    return f"if({condition}, cityHash64({column}), 0)" if column in columns else column
