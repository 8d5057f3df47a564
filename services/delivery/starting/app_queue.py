"""The order in which the pushes of one app start."""

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyroaring import BitMap

from services.delivery.starting.waiting_push import WaitingPush


class StartingPart(NamedTuple):
    """The part of a push in some partitions, which is started at once."""

    waiting: WaitingPush
    audiences: dict[int, BitMap]


Cost = Callable[[WaitingPush, int], float]
"""Returns the work of starting a push in a partition, in the unit of the turns."""


class AppQueue:
    """One app's pushes that have not started. They start in the order of the log, except those that are held up.

    A push whose audience is being resolved delays the app's later pushes. Once it is held up it delays none, and starts
    in each partition as soon as its audience there is known, but passes no earlier push that is not held up.
    """

    def __init__(self) -> None:
        self._in_order: dict[int, WaitingPush] = {}
        self._held_up: dict[int, WaitingPush] = {}
        self._resolved: list[tuple[int, int]] = []
        """Heap of (offset, msgid) of pushes that were held up when more of their audience became known; some of them
        have started or ended since."""
        self.held_up_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._in_order or self._held_up)

    def __iter__(self) -> Iterator[WaitingPush]:
        yield from self._held_up.values()
        yield from self._in_order.values()

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns something."""
        return self._next() is not None

    def add(self, waiting: WaitingPush) -> None:
        """Add a push behind those that were added before it."""
        if waiting.is_held_up:
            self._put_held_up(waiting)
        else:
            self._in_order[waiting.msgid] = waiting

    def hold_up(self, waiting: WaitingPush) -> None:
        """Let later pushes overtake the push."""
        waiting.is_held_up = True
        if self._in_order.pop(waiting.msgid, None) is not None:
            self._put_held_up(waiting)

    def note_resolved(self, waiting: WaitingPush) -> None:
        """Note that more of the push's audience is known."""
        if waiting.msgid in self._held_up and waiting.audiences:
            heapq.heappush(self._resolved, (waiting.push.offset, waiting.msgid))

    def discard(self, waiting: WaitingPush) -> None:
        if self._held_up.pop(waiting.msgid, None) is not None:
            self.held_up_bytes -= waiting.size
        self._in_order.pop(waiting.msgid, None)

    def take(self, most: float, cost: Cost) -> tuple[list[StartingPart], float]:
        """Take what starts next: at least one partition, and beyond that what costs at most `most`; with the cost.

        A push for iOS is taken whole, because its rate limit counts from each start.
        """
        taken: list[StartingPart] = []
        spent = 0.0
        while (waiting := self._next()) is not None:
            audiences: dict[int, BitMap] = {}
            for partition in sorted(waiting.audiences):
                of_part = cost(waiting, partition)
                is_whole = bool(audiences) and waiting.push.is_ios
                if spent and spent + of_part > most and not is_whole:
                    break
                spent += of_part
                audiences[partition] = waiting.take(partition)
            if audiences:
                taken.append(StartingPart(waiting, audiences))
                if not waiting.unstarted:
                    self.discard(waiting)
            if not audiences or waiting.audiences:
                break
        return taken, spent

    def _put_held_up(self, waiting: WaitingPush) -> None:
        self._held_up[waiting.msgid] = waiting
        self.held_up_bytes += waiting.size
        self.note_resolved(waiting)

    def _next(self) -> WaitingPush | None:
        first = next(iter(self._in_order.values()), None)
        held_up = self._first_held_up()
        if held_up is not None and (first is None or held_up.push.offset < first.push.offset):
            return held_up
        return first if first and first.is_resolved else None

    def _first_held_up(self) -> WaitingPush | None:
        """Return the first push in the order of the log that is held up and whose audience is known in a partition."""
        while self._resolved:
            waiting = self._held_up.get(self._resolved[0][1])
            if waiting is not None and waiting.audiences:
                return waiting
            heapq.heappop(self._resolved)
        return None
