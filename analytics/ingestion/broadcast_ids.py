"""Which messages went to many: their ids, so that receipts of all others can be kept apart."""

from typing import Any

import numpy as np
import numpy.typing as npt

from analytics.store.clickhouse import ClickHouse


class Broadcasts:
    """The message ids of all broadcasts and multicasts that were read, and how far the commands were read."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.uint64)
        self.newest_ms = 0
        """When the newest push command that was read was written."""

    def note(self, msgid: int, *, is_broadcast: bool, time_ms: int) -> None:
        self.newest_ms = max(self.newest_ms, time_ms)
        if is_broadcast:
            ids = np.array([msgid], np.uint64)
            if not self.among(ids)[0]:
                self._ids = np.insert(self._ids, np.searchsorted(self._ids, ids), ids)

    def among(self, msgids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of the ids are a broadcast's or multicast's."""
        if not len(self._ids):
            return np.zeros(len(msgids), np.bool_)
        places = np.minimum(np.searchsorted(self._ids, msgids), len(self._ids) - 1)
        found: npt.NDArray[Any] = self._ids[places] == msgids
        return found

    async def load(self, clickhouse: ClickHouse) -> None:
        """Take over what the store knows."""
        table = await clickhouse.arrow("SELECT DISTINCT msgid FROM pushes WHERE kind != 'unicast' ORDER BY msgid")
        self._ids = table.column("msgid").to_numpy().astype(np.uint64)
        rows = await clickhouse.rows("SELECT toUnixTimestamp64Milli(max(time)) FROM pushes")
        self.newest_ms = rows[0][0]
