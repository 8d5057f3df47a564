"""Bounded concurrency for work that several keys, usually apps, ask for at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.runtime.errors import TooManyRequestsError
from services.runtime.fairness.activity import Activity
from services.runtime.fairness.queue import FairQueue
from services.runtime.process.clock import Clock

_RETRY_AFTER_S = 1
_MAX_REST_MS = 2_000


class Slot:
    """A place inside a gate, which its holder gives back by `leave`."""

    __slots__ = ("_gate", "_key", "_left", "_since_ms")

    def __init__(self, gate: "FairGate", key: str, since_ms: int) -> None:
        self._gate = gate
        self._key = key
        self._since_ms = since_ms
        self._left = False

    def leave(self) -> None:
        """Give the slot back; again without effect."""
        if not self._left:
            self._left = True
            self._gate._left(self._key, self._since_ms)


class FairGate:
    """Admits at most `slots` callers at once; the others wait and enter in turn.

    A key that is alone may hold all slots, and while no one waits entering is a few comparisons. Beside other active
    keys a key holds at most `slots_beside_others`, and rests after each slot for `rest` times as long as it held it,
    2 s at most: with `rest` 1 and one slot it works half of the time, whatever the work costs.

    Which waiting key is next follows from `FairQueue`: a key with much waiting work delays another by one turn. Of one
    key work of the size `max_waiting` waits at most; what exceeds that is refused at once (TooManyRequestsError).
    """

    def __init__(
        self,
        what: str,
        clock: Clock,
        activity: Activity,
        *,
        slots: int,
        slots_beside_others: int,
        max_waiting: float,
        rest: float = 0,
    ) -> None:
        """`what`: the work in words, for the error."""
        self._what = what
        self._clock = clock
        self._activity = activity
        self._slots = slots
        self._slots_beside_others = slots_beside_others
        self._max_waiting = max_waiting
        self._rest = rest
        self._held: Counter[str] = Counter()
        self._count = 0
        self._rest_ends_ms: dict[str, int] = {}
        self._resting: dict[str, asyncio.Task[None]] = {}
        self._queue: FairQueue[str, asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def turn(self, key: str, size: float = 1) -> AsyncIterator[None]:
        """Hold a slot inside the `async with`. TooManyRequestsError: see above."""
        slot = await self.enter(key, size)
        try:
            yield
        finally:
            slot.leave()

    async def enter(self, key: str, size: float = 1) -> Slot:
        """Wait for a slot and take it; a cancelled caller has none. TooManyRequestsError: see above."""
        if not self._queue and self._count < self._slots and self._may_enter(key):
            self._take(key)
        else:
            await self._wait(key, size)
        return Slot(self, key, self._clock.now_ms())

    async def _wait(self, key: str, size: float) -> None:
        waiting = self._queue.waiting_size(key)
        if waiting and waiting + size > self._max_waiting:
            text = f"too many {self._what} wait already, while others have their turns; try again"
            raise TooManyRequestsError(text, _RETRY_AFTER_S)
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(key, admitted, size)
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self._queue.discard(key, admitted)
            else:
                self._left(key, self._clock.now_ms())
            raise

    def _left(self, key: str, since_ms: int) -> None:
        self._count -= 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        now_ms = self._clock.now_ms()
        rest_ms = min(round(self._rest * (now_ms - since_ms)), _MAX_REST_MS)
        if rest_ms > 0 and not self._activity.is_alone(key):
            self._rest_ends_ms[key] = max(now_ms + rest_ms, self._rest_ends_ms.get(key, 0))
            if key not in self._resting:
                self._resting[key] = asyncio.create_task(self._let_rest(key))
        self._admit()

    async def _let_rest(self, key: str) -> None:
        while (end_ms := self._rest_ends_ms[key]) > self._clock.now_ms():
            await self._clock.sleep_until(end_ms)
        del self._rest_ends_ms[key], self._resting[key]
        self._admit()

    def _take(self, key: str) -> None:
        self._count += 1
        self._held[key] += 1

    def _admit(self) -> None:
        while self._queue and self._count < self._slots:
            taken = self._queue.take(self._may_enter)
            if taken is None:
                return
            key, admitted = taken
            if not admitted.done():
                self._take(key)
                admitted.set_result(None)

    def _may_enter(self, key: str) -> bool:
        if key in self._resting:
            return False
        return self._held[key] < self._slots_beside_others or self._activity.is_alone(key)
