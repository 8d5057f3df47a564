"""Which devices are registered in the store already, so that each device counts once among the registered."""

from pyroaring import BitMap

from analytics.clickhouse import ClickHouse

_KNOWN = """
SELECT appkey, partition, groupUniqArray(number) FROM registrations
WHERE (appkey, partition) = ({appkey:String}, {partition:UInt16}) GROUP BY appkey, partition
"""
_GROUPS = "SELECT DISTINCT appkey, partition FROM registrations"


class Registrations:
    """The numbers of every device that was read, by app and partition: a bit or two a device."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], BitMap] = {}

    def is_first(self, appkey: str, partition: int, number: int) -> bool:
        """Whether the device was never asked about before."""
        known = self._known.setdefault((appkey, partition), BitMap())
        if number in known:
            return False
        known.add(number)
        return True

    async def load(self, clickhouse: ClickHouse) -> None:
        """Take over what the store knows."""
        table = await clickhouse.arrow("SELECT appkey, partition, groupBitmapState(number) FROM registrations")
