"""How long rows are kept. ClickHouse drops older rows by itself, when it merges."""

from analytics.store.clickhouse import ClickHouse
from services.domain.statistics_rows import LOGIN_DAYS

ACK_DAYS = 2
HISTORY = {
    "deliveries": "time",
    "push_outcomes": "time",
    "push_channels": "time",
    "push_values": "time",
    "sessions": "time",
    "device_commands": "time",
    "login_days": "day",
    "login_counts": "day",
    "connection_counts": "minute",
    "connection_changes": "minute",
    "connection_hours": "hour",
}
"""Tables kept for at least `history_days`, with the column of a row's age.

Commands, audiences and devices are kept for ever.
"""

_OF_LOG_INS = frozenset({"sessions", "login_days"})
"""Tables of HISTORY that are kept longer than the others, by the longest of LOGIN_DAYS.

A date's numbers of logged-in users need the days before it. `login_days` is filled from `sessions` for another zone.
"""

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
_TABLES = "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()"


def kept_days(history_days: int) -> dict[str, int]:
    """Return for how many days each table with a retention keeps its rows."""
    of_history = {table: history_days + (max(LOGIN_DAYS) if table in _OF_LOG_INS else 0) for table in HISTORY}
    return {**of_history, "acks": ACK_DAYS}


async def apply_retention(clickhouse: ClickHouse, history_days: int) -> None:
    """Keep rows for `kept_days` of their tables. Alters only tables with another retention."""
    engines = dict[str, str](await clickhouse.rows(_TABLES))  # type: ignore[arg-type]
    columns = {**HISTORY, "acks": "time"}
    for table, days in kept_days(history_days).items():
        ttl = f"toDateTime({columns[table]}) + toIntervalDay({days})"
        if f"TTL {ttl} " not in engines[table]:
            await clickhouse.command(f"ALTER TABLE {table} MODIFY TTL {ttl}")


async def expired_outcome_days(clickhouse: ClickHouse, appkey: str, push: int) -> int:
    """Return the retention of outcomes in days if the push is older, so that its outcomes are gone; else 0."""
    rows = await clickhouse.rows(_EXPIRED_OUTCOMES, {"appkey": appkey, "push": push})
    return int(rows[0][0]) if rows else 0


async def outcomes_since_ms(clickhouse: ClickHouse) -> int:
    """Return the time from which outcomes are kept, in milliseconds since 1970 UTC: those of older pushes are gone."""
    rows = await clickhouse.rows(_OUTCOMES_SINCE)
    return int(rows[0][0]) if rows else 0
