"""A digest of what the store says, for comparing a store with one built from the log again."""

import hashlib

from analytics.ingestion.attributes import ATTRIBUTES
from analytics.store.clickhouse import ClickHouse
from analytics.store.retention import HISTORY
from analytics.store.tables import TABLES

_LATEST_ONLY = "devices"
"""Its topic is compacted, so only the latest state of each device can be built again."""

_OF_THE_MOMENT = frozenset(ATTRIBUTES)
"""What a device was like when something was stored depends on how its topics interleaved."""

_OF_THE_FIRST = frozenset({"registered"})
"""When a device registered first is gone from its topic once it left and came back."""


async def counts(clickhouse: ClickHouse) -> dict[str, int]:
    """How many different rows each table has."""
    return {table: (await clickhouse.rows(f"SELECT count() FROM {table} FINAL"))[0][0] for table in sorted(TABLES)}  # noqa: S608


async def digest(clickhouse: ClickHouse, since_ms: int = 0) -> str:
    """Equal contents have equal digests, whatever batches they came in.

    Facts from before `since_ms`, milliseconds since 1970 UTC, count for nothing where old ones are dropped in time.
    """
    digest = hashlib.sha256()
    for table in sorted(TABLES):
        count, total = (await clickhouse.rows(_sum(table), {"since_ms": since_ms}))[0]
        digest.update(f"{table} {count} {total}\n".encode())
    return digest.hexdigest()


def _sum(table: str) -> str:
    moment = frozenset() if table == _LATEST_ONLY else _OF_THE_MOMENT
    moment |= _OF_THE_FIRST if table == "registrations" else frozenset()
    columns = ", ".join(
        name
        for name in TABLES[table].names
        if name not in moment and not (name.startswith("_") and name != "_event_id")
    )
    rows = f"SELECT {columns}, _offset FROM {table} FINAL"  # noqa: S608
    if table in HISTORY:
        rows += f" WHERE {HISTORY[table]} >= fromUnixTimestamp64Milli({{since_ms:Int64}})"
    if table == _LATEST_ONLY:
        rows += " ORDER BY appkey, partition, number, _offset DESC LIMIT 1 BY appkey, partition, number"
    return f"SELECT count(), sum(cityHash64({columns})) FROM ({rows})"  # noqa: S608
