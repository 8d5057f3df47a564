"""The byte budget of the pushes that wait to be started, which the apps share."""

import asyncio
from collections import Counter

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Bytes of commands that wait to be started; beyond it no further commands are read."""

MAX_HELD_UP_BYTES = MAX_WAITING_BYTES * 3 // 4
"""Bytes of one app's commands that may be held up; a push beyond it fails, so that other apps' commands are read.

An app has no capacity long before that, so it concerns pushes that were appended while delivery did not answer.
"""


class WaitingBytes:
    """Counts the bytes that wait, in all (`total`) and of each app.

    An app has capacity while less of it waits than is free. So one app fills half of the budget at most, the next one
    half of what is left, and n apps that fill it together n parts of n + 1: something always stays free for another app
    (dynamic thresholds: Choudhury and Hahne, 1998). The edge and scheduling ask for capacity before they append pushes;
    delivery itself takes what is in the log.
    """

    def __init__(self) -> None:
        self._by_app: Counter[str] = Counter()
        self.total = 0
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()

    def has_capacity(self, appkey: str) -> bool:
        """Return whether more pushes of the app should be appended to the log."""
        own = self._by_app.get(appkey, 0)
        return not own or own < MAX_WAITING_BYTES - self.total

    def add(self, appkey: str, size: int) -> None:
        self._by_app[appkey] += size
        self.total += size
        if self.total > MAX_WAITING_BYTES:
            self._has_capacity.clear()

    def remove(self, appkey: str, size: int) -> None:
        self._by_app[appkey] -= size
        if not self._by_app[appkey]:
            del self._by_app[appkey]
        self.total -= size
        if self.total <= MAX_WAITING_BYTES:
            self._has_capacity.set()

    async def wait_capacity(self) -> None:
        """Return once at most MAX_WAITING_BYTES wait."""
        await self._has_capacity.wait()
