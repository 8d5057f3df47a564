"""Broadcasts and multicasts that have not expired, whether or not all devices have received them."""

import heapq
import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Broadcast:
    """A broadcast or multicast as long as it can be cancelled."""

    appkey: str
    expires_ms: int
    is_cancelled: bool = False


BroadcastRow = tuple[int, str, int, bool]
"""Msgid, appkey, expires_ms, is_cancelled."""


class UnexpiredBroadcasts:
    """Unexpired broadcasts by msgid, folded from push-commands; time advances with the commands' times, not with the
    clock."""

    def __init__(self) -> None:
        self._by_msgid: dict[int, Broadcast] = {}
        self._expiries: list[tuple[int, int]] = []

    def add(self, msgid: int, appkey: str, expires_ms: int, is_cancelled: bool = False) -> None:
        self._by_msgid[msgid] = Broadcast(sys.intern(appkey), expires_ms, is_cancelled)
        heapq.heappush(self._expiries, (expires_ms, msgid))

    def cancel(self, msgid: int, appkey: str) -> None:
        """Mark the broadcast as cancelled; an unknown one or one of another app is ignored."""
        found = self._by_msgid.get(msgid)
        if found is not None and found.appkey == appkey:
            found.is_cancelled = True

    def get(self, msgid: int) -> Broadcast | None:
        """Return the broadcast, also one that has expired since the last command."""
        return self._by_msgid.get(msgid)

    def unexpired(self, msgid: int, appkey: str, now_ms: int) -> Broadcast | None:
        """Return the app's broadcast if its time to live has not passed."""
        found = self._by_msgid.get(msgid)
        return found if found is not None and found.appkey == appkey and found.expires_ms > now_ms else None

    def forget(self, now_ms: int) -> None:
        """Remove the broadcasts that have expired by the time of a command."""
        while self._expiries and self._expiries[0][0] <= now_ms:
            self._by_msgid.pop(heapq.heappop(self._expiries)[1], None)

    def dump(self) -> list[BroadcastRow]:
        return [
            (msgid, each.appkey, each.expires_ms, each.is_cancelled) for msgid, each in sorted(self._by_msgid.items())
        ]

    def load(self, rows: Iterable[BroadcastRow]) -> None:
        """Fill an empty object with the rows of `dump`."""
        for row in rows:
            self.add(*row)
