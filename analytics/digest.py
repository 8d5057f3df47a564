"""A digest of the store's contents, by which a store is compared with one that was rebuilt from the log."""

import hashlib

from analytics.ingestion.tables.catalogue import TABLES
from analytics.store.clickhouse import ClickHouse
from analytics.store.columns import ATTRIBUTES
from analytics.store.retention import HISTORY

LATEST_ONLY = "devices"
"""The topic of this table is compacted, so only the latest state of each device can be rebuilt."""

_DEPENDS_ON_ORDER = frozenset(ATTRIBUTES)
"""Attributes of other tables than `devices` depend on how the records of several topics interleaved."""

_OF_PUSHES = frozenset({"title", "text", "audience_summary"})
_ADDED = {
    **dict.fromkeys(("pushes", "task_pushes"), _OF_PUSHES),
    **dict.fromkeys(("device_commands", "actions"), frozenset({"details"})),
}
"""By table, columns of a later version: rows that an earlier one stored lack them, or have them in another form."""

_FIRST_REGISTRATION = frozenset({"registered"})
"""A compacted topic no longer has a device's first registration once the device has left and registered again."""


async def counts(clickhouse: ClickHouse) -> dict[str, int]:
    """Return the number of different rows in each table."""
    return {table: (await clickhouse.rows(f"SELECT count() FROM {table} FINAL"))[0][0] for table in sorted(TABLES)}  # noqa: S608


async def digest(clickhouse: ClickHouse, since_ms: int = 0) -> str:
    """Return the same digest for the same contents, whatever batches they were inserted in.

    In tables with a retention, facts before `since_ms` (milliseconds since 1970 UTC) are left out.
    """
    digest = hashlib.sha256()
    for table in sorted(TABLES):
        count, total = (await clickhouse.rows(_hash_query(table), {"since_ms": since_ms}))[0]
        digest.update(f"{table} {count} {total}\n".encode())
    return digest.hexdigest()


def compared_columns(table: str) -> list[str]:
    """Return the columns in which a rebuilt store has what the live one has."""
    ignored = frozenset() if table == LATEST_ONLY else _DEPENDS_ON_ORDER
    ignored |= _FIRST_REGISTRATION if table == "registrations" else frozenset()
    ignored |= _ADDED.get(table, frozenset())
    return [
        name
        for name in TABLES[table].schema.names
        if name not in ignored and not (name.startswith("_") and name != "_event_id")
    ]


def _hash_query(table: str) -> str:
    columns = ", ".join(compared_columns(table))
    rows = f"SELECT {columns}, _offset FROM {table} FINAL"  # noqa: S608
    if table in HISTORY:
        rows += f" WHERE {HISTORY[table]} >= fromUnixTimestamp64Milli({{since_ms:Int64}})"
    if table == LATEST_ONLY:
        rows += " ORDER BY appkey, partition, number, _offset DESC LIMIT 1 BY appkey, partition, number"
    return f"SELECT count(), sum(cityHash64({columns})) FROM ({rows})"  # noqa: S608
