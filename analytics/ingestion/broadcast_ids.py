"""The message ids of broadcasts and multicasts, by which receipts of unicast messages are told from all others."""

from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.store.clickhouse import ClickHouse


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
