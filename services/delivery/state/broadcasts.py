"""Broadcasts and multicasts whose time to live is not over, whether or not everybody has received them."""

import heapq
import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Broadcast:
    """What is known of it for as long as it can be cancelled."""

    appkey: str
    expires_ms: int
    is_cancelled: bool = False


Row = tuple[int, str, int, bool]


class Broadcasts:
    """Part of the fold over push-commands: time passes with the commands, not with the clock."""

    def __init__(self) -> None:
        self._known: dict[int, Broadcast] = {}
        self._ends: list[tuple[int, int]] = []

    def add(self, msgid: int, appkey: str, expires_ms: int, is_cancelled: bool = False) -> None:
        self._known[msgid] = Broadcast(sys.intern(appkey), expires_ms, is_cancelled)
        heapq.heappush(self._ends, (expires_ms, msgid))

    def cancel(self, msgid: int, appkey: str) -> None:
        """Of an unknown broadcast, or another app's, it changes nothing."""
        found = self._known.get(msgid)
        if found is not None and found.appkey == appkey:
            found.is_cancelled = True

    def get(self, msgid: int) -> Broadcast | None:
        """Those that expired since the last command are still there."""
        return self._known.get(msgid)

    def forget(self, now_ms: int) -> None:
        """Drop what has expired by the moment of a command."""
        while self._ends and self._ends[0][0] <= now_ms:
            self._known.pop(heapq.heappop(self._ends)[1], None)

    def dump(self) -> list[Row]:
        return [(msgid, each.appkey, each.expires_ms, each.is_cancelled) for msgid, each in sorted(self._known.items())]

    def load(self, rows: Iterable[Row]) -> None:
        """Fill what is empty with what `dump` gave."""
        for row in rows:
            self.add(*row)
