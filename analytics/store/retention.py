"""How long rows are kept. ClickHouse drops older rows by itself, when it merges."""

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
    "connection_hours": "hour",
}
"""Tables kept for `history_days`, with the column of a row's age. Commands, audiences and devices are kept for ever."""

_EXPIRED_OUTCOMES = r"""
SELECT toUInt32OrZero(extract(engine_full, 'toIntervalDay\\((\\d+)\\)')) AS days FROM system.tables
WHERE database = currentDatabase() AND name = 'push_outcomes' AND days > 0
  AND (SELECT min(time) FROM pushes WHERE msgid = {push:UInt64} AND appkey = {appkey:String})
    < now64(3) - toIntervalDay(days)
"""
_TABLES = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"


async def apply_retention(clickhouse: ClickHouse, history_days: int) -> None:
    """Keep facts for `history_days` and acknowledgements for ACK_DAYS. Alters only tables with another retention."""
    engines = dict[str, str](await clickhouse.rows(_TABLES))  # type: ignore[arg-type]
    wanted = {table: (column, history_days) for table, column in HISTORY.items()} | {"acks": ("time", ACK_DAYS)}
    for table, (column, days) in wanted.items():
        ttl = f"toDateTime({column}) + toIntervalDay({days})"
        if f"TTL {ttl} " not in engines[table]:
            await clickhouse.command(f"ALTER TABLE {table} MODIFY TTL {ttl}")


async def expired_outcome_days(clickhouse: ClickHouse, appkey: str, push: int) -> int:
    """Return for how many days outcomes are kept if the push is older than that, so that they are gone; else 0."""
    rows = await clickhouse.rows(_EXPIRED_OUTCOMES, {"appkey": appkey, "push": push})
    return int(rows[0][0]) if rows else 0
