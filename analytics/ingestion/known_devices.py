"""The device numbers that the store has registrations of, so that each device counts once among the registered."""

from pyroaring import BitMap

from analytics.store.clickhouse import ClickHouse

_KNOWN = "SELECT appkey, partition, groupArray(number) AS numbers FROM registrations GROUP BY appkey, partition"


class KnownDevices:
    """Device numbers by app and partition, as bitmaps: about a bit a device."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], BitMap] = {}

    def add(self, appkey: str, partition: int, number: int) -> bool:
        """Add a device; return whether it is new."""
        known = self._numbers.setdefault((appkey, partition), BitMap())
        if number in known:
            return False
        known.add(number)
        return True

    def includes(self, appkey: str, partition: int, numbers: BitMap) -> bool:
        """Return whether all of these devices are known."""
        return bool(numbers <= self._numbers.get((appkey, partition), BitMap()))

    async def load(self, clickhouse: ClickHouse) -> None:
        table = await clickhouse.arrow(_KNOWN)
        appkeys, partitions, numbers = (table.column(name) for name in ("appkey", "partition", "numbers"))
        for appkey, partition, of_partition in zip(appkeys, partitions, numbers, strict=True):
            self._numbers[appkey.as_py(), partition.as_py()] = BitMap(of_partition.values.to_numpy())
