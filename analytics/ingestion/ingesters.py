"""The ingesters of the analytics store: the identity under which each instance fills it.

Rows that add up (SUMS) carry the identity, so that sums of a replaced ingester do not count twice.
"""

from analytics.store.clickhouse import ClickHouse

SUMS = ("connection_changes", "connection_hours", "connection_days")
"""Tables whose rows add up; each ingester's rows are one ClickHouse partition."""

_IDENTITY = "SELECT identity FROM readers FINAL WHERE instance = {instance:String}"
_REGISTER = "INSERT INTO readers (instance, identity) SELECT {instance:String}, {identity:String}"
_REGISTERED = "SELECT identity FROM readers FINAL"
_DELETE_OTHER_SHARDS = """
DELETE FROM readers WHERE splitByChar('/', instance)[-1] != splitByChar('/', {instance:String})[-1]
"""


async def is_registered(clickhouse: ClickHouse, instance: str, identity: str) -> bool:
    """Return whether the store is filled by this identity of the instance."""
    rows = await clickhouse.rows(_IDENTITY, {"instance": instance})
    return [identity] == [found for (found,) in rows]


async def register(clickhouse: ClickHouse, instance: str, identity: str) -> None:
    """Make this identity the instance's ingester. `instance` is SHARD/SHARDS; other numbers of shards are dropped.

    It fills the store again, with the attributes that devices have then, so counts stored by attributes are deleted.
    """
    await clickhouse.command("TRUNCATE TABLE broadcast_counts")
    await clickhouse.command(_DELETE_OTHER_SHARDS, {"instance": instance})
    await clickhouse.command(_REGISTER, {"instance": instance, "identity": identity})


async def drop_replaced(clickhouse: ClickHouse) -> None:
    """Drop the sums of ingesters that were replaced; queries ignore them already."""
    for table in SUMS:
        found = await clickhouse.rows(f"SELECT DISTINCT reader FROM {table}")  # noqa: S608
        registered = {identity for (identity,) in await clickhouse.rows(_REGISTERED)}
        for (identity,) in found:
            if identity not in registered:
                await clickhouse.command(
                    f"ALTER TABLE {table} DROP PARTITION {{identity:String}}", {"identity": identity}
                )
