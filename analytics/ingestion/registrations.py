"""Which devices the store knows already, so that each device counts once among the registered."""

from pyroaring import BitMap

from analytics.store.clickhouse import ClickHouse

_KNOWN = "SELECT appkey, partition, groupArray(number) AS numbers FROM registrations GROUP BY appkey, partition"


class Registrations:
    """The numbers of all devices that were read, by app and partition: about a bit a device."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], BitMap] = {}

    def is_first(self, appkey: str, partition: int, number: int) -> bool:
        """Whether the device was not seen before; it is from now on."""
        known = self._known.setdefault((appkey, partition), BitMap())
        if number in known:
            return False
        known.add(number)
        return True

    def knows(self, appkey: str, partition: int, numbers: BitMap) -> bool:
        """Whether all of these devices were seen."""
        return bool(numbers <= self._known.get((appkey, partition), BitMap()))

    async def load(self, clickhouse: ClickHouse) -> None:
        """Take over what the store knows."""
        table = await clickhouse.arrow(_KNOWN)
        appkeys, partitions, numbers = (table.column(name) for name in ("appkey", "partition", "numbers"))
        for appkey, partition, of_partition in zip(appkeys, partitions, numbers, strict=True):
            key = (appkey.as_py(), partition.as_py())
            self._known[key] = BitMap(of_partition.values.to_numpy())
