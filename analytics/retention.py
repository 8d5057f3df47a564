"""How long rows are kept: ClickHouse drops older ones by itself, when it merges."""

from analytics.clickhouse import ClickHouse

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
}
"""Tables of raw facts, and of sets made of them, with the column that says how old a row is. What was asked for, whom
it was for, and what devices there are is kept for ever."""

_TABLES = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"


async def keep(clickhouse: ClickHouse, history_days: int) -> None:
    """Keep facts for so many days, acknowledgements for two. Changes only what is not so yet."""
    engines = dict[str, str](await clickhouse.rows(_TABLES))  # type: ignore[arg-type]
    wanted = {table: (column, history_days) for table, column in HISTORY.items()} | {"acks": ("time", ACK_DAYS)}
    for table, (column, days) in wanted.items():
        lifetime = f"toDateTime({column}) + toIntervalDay({days})"
        if f"TTL {lifetime} " not in engines[table]:
            await clickhouse.command(f"ALTER TABLE {table} MODIFY TTL {lifetime}")
