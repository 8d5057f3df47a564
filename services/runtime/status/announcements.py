"""The latest announcements of all processes that a parent knows, for its child process."""

import asyncio
from collections.abc import AsyncIterator

from protos.runtime.v1.processes_pb2 import ProcessFact


class Announcements:
    """Keeps the latest announcement of each process, and passes it on to those who follow."""

    def __init__(self) -> None:
        self._latest: dict[str, ProcessFact] = {}
        self._changed = asyncio.Event()

    async def publish(self, fact: ProcessFact) -> None:
        """Note the announcement of a process."""
        self._latest[fact.process] = fact
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self) -> AsyncIterator[ProcessFact]:
        """Yield the latest announcement of each process, then later ones; a slow follower misses some of these."""
        seen: dict[str, ProcessFact] = {}
        while True:
            changed = self._changed
            for process, fact in list(self._latest.items()):
                if seen.get(process) is not fact:
                    seen[process] = fact
                    yield fact
            await changed.wait()
