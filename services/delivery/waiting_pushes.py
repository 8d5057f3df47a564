"""Pushes that wait to start: their order within an app, their byte budget, and their estimated cost."""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pyroaring import BitMap

from services.delivery.state.pushes import UnstartedPush

# A push that has not started in all of its partitions, with what is known of its audience.

LONG_LIST = 100
"""Messages up to which a push to listed devices is handled as one to a single device."""


@dataclass(slots=True, eq=False)
class WaitingPush:
    """A push that waits for its start in some partitions.

    `size`: bytes of the command. `unstarted`: the partitions whose start is not being written yet. `audiences`: the
    audiences known of these. `attributes_until`: PushStarted.attributes_until of them; empty if the request lists
    devices.

    A push that is held up waits for targeting, and later pushes of its app no longer wait for it. `failures` counts the
    attempts that failed because of the push itself, and `retries` these and those that targeting did not answer
    although it had answered a probe. A push that is over has started everywhere or was ended.
    """

    push: UnstartedPush
    size: int
    unstarted: set[int]
    audiences: dict[int, BitMap] = field(default_factory=dict)
    attributes_until: dict[int, int] = field(default_factory=dict)
    is_held_up: bool = False
    failures: int = 0
    retries: int = 0
    last_error: str = ""
    is_over: bool = False
    listed: dict[int, int] = field(default_factory=dict)
    """Messages to the listed devices, by partition: a list may name a device several times."""

    @classmethod
    def of(cls, push: UnstartedPush) -> "WaitingPush":
        """Return the push with the audience that its request lists, if it lists one."""
        waiting = cls(push, push.send.ByteSize(), set(push.remaining))
        if push.is_listed:
            waiting.audiences = {partition: BitMap(push.targets(partition)) for partition in push.remaining}
            waiting.listed = {p: sum(map(len, push.targets(p).values())) for p in push.remaining}
        return waiting

    @property
    def msgid(self) -> int:
        return self.push.send.msgid

    @property
    def appkey(self) -> str:
        return self.push.send.appkey

    @property
    def is_long_list(self) -> bool:
        return sum(self.listed.values()) > LONG_LIST

    @property
    def unresolved(self) -> list[int]:
        """The partitions whose audience is not known."""
        return sorted(self.unstarted - self.audiences.keys())

    @property
    def is_resolved(self) -> bool:
        return len(self.audiences) == len(self.unstarted)

    def take(self, partition: int) -> BitMap:
        """Return the audience in the partition, which is being started from now on."""
        self.unstarted.discard(partition)
        return self.audiences.pop(partition)


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
        """Add a push at the end of the queue."""
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

    def take(
        self, most: float, cost: Cost, starts_whole: Callable[[WaitingPush], bool] = lambda waiting: False
    ) -> tuple[list[StartingPart], float]:
        """Take the parts that start next, with their cost: at least one, and more while they cost at most `most`.

        `starts_whole`: whether a push has to start in all partitions whose audience is known at once.
        """
        taken: list[StartingPart] = []
        spent = 0.0
        while (waiting := self._next()) is not None:
            audiences: dict[int, BitMap] = {}
            for partition in sorted(waiting.audiences):
                of_part = cost(waiting, partition)
                is_whole = bool(audiences) and starts_whole(waiting)
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


# The byte budget of the pushes that wait to be started, which the apps share.

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Bytes of commands that wait to be started; beyond it no further commands are read."""

MAX_HELD_UP_BYTES = MAX_WAITING_BYTES * 3 // 4
"""Bytes of one app's commands that may be held up; a push beyond it fails, so that other apps' commands are read.

An app loses its capacity long before that, so only pushes that were appended while delivery did not answer fail.
"""


class WaitingBytes:
    """Counts the bytes that wait, in all (`total`) and of each app.

    An app has capacity while its waiting bytes are fewer than the free bytes. So one app fills at most half of the
    budget, the next one half of the rest, and n apps that fill it together n / (n + 1) of it: some always stays free
    for another app (dynamic thresholds: Choudhury and Hahne, 1998). The edge and scheduling ask for capacity before
    they append pushes; delivery itself takes what is in the log.
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


# The estimated cost of starting pushes, in units of about a microsecond.

ROUND = 10_000
"""Work that is started at once, by one append to the log at most."""

TURN = 2_500
"""Work that one app may have started before the next app's turn."""

PARTITION_COST = 60
"""Work of starting a push in a partition, beside what its channel does there."""
