"""Ids that the ingestion keeps in memory: registered devices, and the message ids of broadcasts."""

from typing import Any

import numpy as np
import numpy.typing as npt
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


# The message ids of broadcasts and multicasts, by which receipts of unicast messages are told from all others.


class BroadcastIds:
    """Sorted message ids of all broadcasts and multicasts that were read, and the time of the newest push command."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.uint64)
        self.newest_ms = 0
        """When the newest push command that was read was written, in milliseconds since 1970 UTC."""

    def note(self, msgid: int, *, is_broadcast: bool, time_ms: int) -> None:
        self.newest_ms = max(self.newest_ms, time_ms)
        if is_broadcast:
            ids = np.array([msgid], np.uint64)
            if not self.includes(ids)[0]:
                self._ids = np.insert(self._ids, np.searchsorted(self._ids, ids), ids)

    def includes(self, msgids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return, for each message id, whether it belongs to a broadcast or multicast."""
        if not len(self._ids):
            return np.zeros(len(msgids), np.bool_)
        indexes = np.minimum(np.searchsorted(self._ids, msgids), len(self._ids) - 1)
        found: npt.NDArray[Any] = self._ids[indexes] == msgids
        return found

    async def load(self, clickhouse: ClickHouse) -> None:
        table = await clickhouse.arrow("SELECT DISTINCT msgid FROM pushes WHERE kind != 'unicast' ORDER BY msgid")
        self._ids = table.column("msgid").to_numpy().astype(np.uint64)
        rows = await clickhouse.rows("SELECT toUnixTimestamp64Milli(max(time)) FROM pushes")
        self.newest_ms = rows[0][0]
