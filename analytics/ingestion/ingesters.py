"""Who fills the analytics store: the identity of each instance's reader, which what it adds up bears."""

from analytics.store.clickhouse import ClickHouse

SUMS = ("connection_changes", "connection_days")
"""Tables whose rows add up, so that what another reader stored may not count. A reader's rows are one partition."""

_STANDS = "SELECT identity FROM readers FINAL WHERE instance = {instance:String}"
_STAND = "INSERT INTO readers (instance, identity) SELECT {instance:String}, {identity:String}"
_ALL = "SELECT identity FROM readers FINAL"
_OTHER_SHARDS = """
DELETE FROM readers WHERE splitByChar('/', instance)[-1] != splitByChar('/', {instance:String})[-1]
"""


async def stands(clickhouse: ClickHouse, instance: str, identity: str) -> bool:
    """Whether the store was filled by this reader."""
    rows = await clickhouse.rows(_STANDS, {"instance": instance})
    return [identity] == [found for (found,) in rows]


async def stand(clickhouse: ClickHouse, instance: str, identity: str) -> None:
    """From now on this reader fills the store, with those of the other instances `SHARD/SHARDS` of as many shards."""
    await clickhouse.command(_OTHER_SHARDS, {"instance": instance})
    await clickhouse.command(_STAND, {"instance": instance, "identity": identity})


async def forget_others(clickhouse: ClickHouse) -> None:
    """Drop what was added up by readers that were replaced; it counts for nothing already."""
    for table in SUMS:
        found = await clickhouse.rows(f"SELECT DISTINCT reader FROM {table}")  # noqa: S608
        standing = {identity for (identity,) in await clickhouse.rows(_ALL)}
        for (reader,) in found:
            if reader not in standing:
                await clickhouse.command(f"ALTER TABLE {table} DROP PARTITION {{reader:String}}", {"reader": reader})
