"""The ends of the log some moments ago; questions that do not need the newest records are answered as of these moments.

Ingesting a small batch takes as much CPU time as answering several questions. So the questions of a few seconds wait
for the same batch.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from services.runtime.log.port import Log, Partition

_KEPT = 16


class RecentEnds:
    """The ends of all partitions at the moments of the latest questions."""

    def __init__(self, log: Log, partitions: Sequence[Partition]) -> None:
        self._log = log
        self._partitions = partitions
        self._found: deque[tuple[float, Mapping[Partition, int]]] = deque(maxlen=_KEPT)

    async def at_most_ms_old(self, max_age_ms: int) -> Mapping[Partition, int]:
        """Return the ends of all partitions at the earliest known moment that is at most `max_age_ms` ago."""
        now_ms = asyncio.get_running_loop().time() * 1000
        for found_ms, ends in self._found:
            if found_ms > now_ms - max_age_ms:
                return ends
        ends = await self._log.ends(self._partitions)
        self._found.append((now_ms, ends))
        return ends
