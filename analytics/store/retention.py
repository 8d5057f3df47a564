"""How long rows are kept: ClickHouse drops older ones by itself, when it merges."""

from analytics.store.clickhouse import ClickHouse

ACK_DAYS = 2
HISTORY = {
    "deliveries": "time",
    "push_outcomes": "time",
    "push_values": "time",
    "sessions": "time",
    "device_commands": "time",
    "login_days": "day",
    "login_counts": "day",
    "connection_counts": "minute",
    "connection_changes": "minute",
}
"""Tables of raw facts, and of sets made of them, with the column that says how old a row is. What was asked for, whom
it was for, and what devices there are is kept for ever."""

_OUTLIVED = r"""
SELECT toUInt32OrZero(extract(engine_full, 'toIntervalDay\\((\\d+)\\)')) AS days FROM system.tables
WHERE database = currentDatabase() AND name = 'push_outcomes' AND days > 0
  AND (SELECT min(time) FROM pushes WHERE msgid = {push:UInt64} AND appkey = {appkey:String})
    < now64(3) - toIntervalDay(days)
"""
_TABLES = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"


async def keep(clickhouse: ClickHouse, history_days: int) -> None:
    """Keep facts for so many days, acknowledgements for two. Changes only what is not so yet."""
    engines = dict[str, str](await clickhouse.rows(_TABLES))  # type: ignore[arg-type]
    wanted = {table: (column, history_days) for table, column in HISTORY.items()} | {"acks": ("time", ACK_DAYS)}
    for table, (column, days) in wanted.items():
        lifetime = f"toDateTime({column}) + toIntervalDay({days})"
        if f"TTL {lifetime} " not in engines[table]:
            await clickhouse.command(f"ALTER TABLE {table} MODIFY TTL {lifetime}")


async def outlived_days(clickhouse: ClickHouse, appkey: str, push: int) -> int:
    """For how many days outcomes are kept, if the push is older than that and they are gone; else 0."""
    rows = await clickhouse.rows(_OUTLIVED, {"appkey": appkey, "push": push})
    return int(rows[0][0]) if rows else 0
