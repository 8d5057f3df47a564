"""Looks up the tokens of devices, which other tables name by partition and number."""

from collections.abc import Collection

from analytics.store.clickhouse import ClickHouse

_TOKENS = """
SELECT partition, number, token FROM device_tokens
WHERE appkey = {appkey:String} AND device IN {devices:Array(UInt64)}
"""


async def device_tokens(
    clickhouse: ClickHouse, appkey: str, devices: Collection[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """Return tokens by (partition, number); devices whose records are not ingested are left out."""
    wanted = sorted(partition << 32 | number for partition, number in devices)
    rows = await clickhouse.rows(_TOKENS, {"appkey": appkey, "devices": wanted})
    return {(partition, number): token for partition, number, token in rows}
