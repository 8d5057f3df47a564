"""How long rows are kept, and contents in them. ClickHouse drops what is older by itself, when it merges."""

import re

from analytics.store.clickhouse import ClickHouse
from analytics.store.retention_days import AGES, CONTENTS, RetentionDays

_EXPIRED_OUTCOMES = r"""
SELECT toUInt32OrZero(extract(engine_full, 'toIntervalDay\\((\\d+)\\)')) AS days FROM system.tables
WHERE database = currentDatabase() AND name = 'push_outcomes' AND days > 0
  AND (SELECT min(time) FROM pushes WHERE msgid = {push:UInt64} AND appkey = {appkey:String})
    < now64(3) - toIntervalDay(days)
"""
_OUTCOMES_SINCE = r"""
SELECT toUnixTimestamp64Milli(now64(3) - toIntervalDay(days)) FROM (
  SELECT toUInt32OrZero(extract(engine_full, 'toIntervalDay\\((\\d+)\\)')) AS days FROM system.tables
  WHERE database = currentDatabase() AND name = 'push_outcomes')
WHERE days > 0
"""
_TABLES = "SELECT name, engine_full, create_table_query FROM system.tables WHERE database = currentDatabase()"


async def apply_retention(clickhouse: ClickHouse, days: RetentionDays) -> None:
    """Keep rows and contents for these days. Alters only tables that keep them for another time."""
    found = await clickhouse.rows(_TABLES)
    engines = {name: engine for name, engine, _ in found}
    for table, kept in days.of_tables().items():
        ttl = _ttl(AGES[table], kept)
        if ttl and f"TTL {ttl} " not in engines[table]:
            await clickhouse.command(f"ALTER TABLE {table} MODIFY TTL {ttl}")
        elif not ttl and " TTL " in engines[table]:
            await clickhouse.command(f"ALTER TABLE {table} REMOVE TTL")
    definitions = {name: definition for name, _, definition in found}
    for table, columns in CONTENTS.items():
        for column in columns:
            await _keep_contents(clickhouse, table, column, definitions[table], _ttl("time", days.contents))


async def _keep_contents(clickhouse: ClickHouse, table: str, column: str, definition: str, ttl: str) -> None:
    stored = re.search(rf"`{column}` ([^`]*?)(?: TTL ([^`]*?))?(?:, `|, INDEX |\)[^`]*$)", definition)
    assert stored, table
    if ttl and stored[2] != ttl:
        await clickhouse.command(f"ALTER TABLE {table} MODIFY COLUMN {column} {stored[1]} TTL {ttl}")
    elif not ttl and stored[2]:
        await clickhouse.command(f"ALTER TABLE {table} MODIFY COLUMN {column} REMOVE TTL")


def _ttl(column: str, days: int | None) -> str:
    """Return the expression of a time to live, as ClickHouse writes it; empty for ever."""
    return "" if days is None else f"toDateTime({column}) + toIntervalDay({days})"


async def expired_outcome_days(clickhouse: ClickHouse, appkey: str, push: int) -> int:
    """Return the retention of outcomes in days if the push is older, so that its outcomes are gone; else 0."""
    rows = await clickhouse.rows(_EXPIRED_OUTCOMES, {"appkey": appkey, "push": push})
    return int(rows[0][0]) if rows else 0


async def outcomes_since_ms(clickhouse: ClickHouse) -> int:
    """Return the time from which outcomes are kept, in milliseconds since 1970 UTC: those of older pushes are gone."""
    rows = await clickhouse.rows(_OUTCOMES_SINCE)
    return int(rows[0][0]) if rows else 0
