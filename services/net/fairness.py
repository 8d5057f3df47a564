"""Fairness between keys, usually apps: turns in a queue, bounded concurrency, and throttling beside others."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial
from heapq import heappop, heappush
from typing import Generic, TypeVar

from services.errors import BusyError
from services.process.clock import Clock

# Tells whether a key, usually an app, is the only one that has used this process lately.

WINDOW_MS = 10_000
"""Time after its last use for which a key counts as active."""


class KeyActivity:
    """The two keys that were seen last; enough to tell whether a key has the process for itself."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._latest = self._other = ""
        self._latest_ms = self._other_ms = -WINDOW_MS

    def seen(self, key: str) -> None:
        if key != self._latest:
            self._other, self._other_ms = self._latest, self._latest_ms
            self._latest = key
        self._latest_ms = self._now_ms()

    def is_alone(self, key: str) -> bool:
        """Return whether no other key was seen in the last WINDOW_MS."""
        latest_of_others_ms = self._other_ms if key == self._latest else self._latest_ms
        return self._now_ms() - latest_of_others_ms >= WINDOW_MS


# Throttling of keys, usually apps, that share a semaphore with other active keys.

_MAX_REST_MS = 2_000


class Throttle:
    """Limits each key while other keys are active; a key that is alone is not limited.

    A key holds at most `slots` slots of a semaphore at once. After each slot it rests for `rest` times as long as it
    held the slot, at most 2 s: with one slot and `rest` 1 a key works half of the time, whatever its work costs.
    """

    def __init__(self, clock: Clock, activity: KeyActivity, slots: int, rest: float = 0) -> None:
        self._clock = clock
        self._activity = activity
        self._slots = slots
        self._rest = rest
        self._rest_ends_ms: dict[str, int] = {}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def may_enter(self, key: str, held: int) -> bool:
        """Return whether a key that holds `held` slots may take another."""
        return key not in self._rest_ends_ms and (held < self._slots or self._activity.is_alone(key))

    def left(self, key: str, since_ms: int, rested: Callable[[], None]) -> None:
        """Note the end of a slot that was taken at `since_ms`; `rested` is called when the key's rest is over."""
        now_ms = self._clock.now_ms()
        rest_ms = min(round(self._rest * (now_ms - since_ms)), _MAX_REST_MS)
        if rest_ms <= 0 or self._activity.is_alone(key):
            return
        is_resting = key in self._rest_ends_ms
        self._rest_ends_ms[key] = max(now_ms + rest_ms, self._rest_ends_ms.get(key, 0))
        if not is_resting:
            self._end_rest(key, rested)

    def _end_rest(self, key: str, rested: Callable[[], None]) -> None:
        """End the key's rest now, or later by a timer: slots are also left while an event loop is closed and takes no
        new task."""
        end_ms = self._rest_ends_ms[key]
        if end_ms > self._clock.now_ms():
            self._clock.call_at(end_ms, partial(self._end_rest, key, rested))
            return
        del self._rest_ends_ms[key]
        rested()


class SharedThrottle(Throttle):
    """A throttle whose rests are common: after a slot of any key, all keys rest.

    It limits all keys, such as addresses, while any app is active: which app their work belongs to is not known yet.
    """

    _ALL = ""

    def may_enter(self, key: str, held: int) -> bool:
        return super().may_enter(self._ALL, held)

    def left(self, key: str, since_ms: int, rested: Callable[[], None]) -> None:
        super().left(self._ALL, since_ms, rested)


# Start-time fair queueing: work of several keys, usually apps, is taken in turn, each key's own in order.
#
# Each item has a size in a unit of the caller's choice (bytes, devices, or 1). Virtual time is the sum of the sizes
# that each waiting key has been served since they all waited. An item starts at the end of its key's previous item,
# or now for a key that had nothing waiting; the item with the earliest start is taken next. So keys with items of
# equal size alternate; a key whose items are ten times as large gets a tenth of the turns; and a key that comes back
# after a pause neither waits behind the others' backlog nor may catch up on the turns that it did not use. (Goyal,
# Vin and Cheng, 1996.)
#
# The queue has no bound of its own: its owner asks `waiting` and refuses.

_MIN_ENDS = 1000
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class FairQueue(Generic[Key, Item]):
    """A queue that takes the items of its keys in turn. Adding and taking cost the logarithm of the number of keys."""

    def __init__(self) -> None:
        self._by_key: dict[Key, deque[tuple[float, float, Item]]] = {}
        self._sizes: dict[Key, float] = {}
        self._heads: list[tuple[float, int, Key]] = []
        self._ends: dict[Key, float] = {}
        self._max_ends = _MIN_ENDS
        self._now = 0.0
        self._added = 0

    def __len__(self) -> int:
        """Return the number of keys with waiting items."""
        return len(self._by_key)

    def waiting(self, key: Key) -> int:
        """Return how many items of the key wait."""
        return len(self._by_key.get(key, ()))

    def waiting_size(self, key: Key) -> float:
        """Return the sum of the sizes of the key's waiting items."""
        return self._sizes.get(key, 0)

    def items(self, key: Key) -> list[Item]:
        """Return the key's waiting items in order."""
        return [item for _, _, item in self._by_key.get(key, ())]

    def put(self, key: Key, item: Item, size: float = 1) -> None:
        """Add an item behind the key's others."""
        start = max(self._now, self._ends.get(key, 0.0))
        self._set_end(key, start + size)
        self._sizes[key] = self._sizes.get(key, 0) + size
        items = self._by_key.get(key)
        if items is None:
            items = self._by_key[key] = deque()
            self._push_head(start, key)
        items.append((start, size, item))

    def charge(self, key: Key, size: float) -> None:
        """Charge the key for work whose size became known only after it was taken."""
        self._set_end(key, max(self._now, self._ends.get(key, 0.0)) + size)

    def take(self, may_run: Callable[[Key], bool] = lambda key: True) -> tuple[Key, Item] | None:
        """Take the next item, with its key, of the keys that may run; None if there is none."""
        passed_over: list[tuple[float, int, Key]] = []
        found: tuple[Key, Item] | None = None
        while self._heads and found is None:
            head = heappop(self._heads)
            key = head[2]
            if may_run(key):
                found = key, self._take_first(key)
            else:
                passed_over.append(head)
        for head in passed_over:
            heappush(self._heads, head)
        return found

    def discard(self, key: Key, item: Item) -> None:
        """Remove an item that is not wanted any more, if it still waits."""
        self.keep(key, lambda each: each is not item)

    def keep(self, key: Key, is_wanted: Callable[[Item], bool]) -> None:
        """Remove the key's waiting items that are not wanted any more."""
        items = self._by_key.get(key, ())
        kept = deque(each for each in items if is_wanted(each[2]))
        if kept:
            self._by_key[key] = kept
            self._sizes[key] = sum(size for _, size, _ in kept)
        elif items:
            self._heads = sorted(head for head in self._heads if head[2] != key)
            self._drop(key)

    def _take_first(self, key: Key) -> Item:
        items = self._by_key[key]
        start, size, item = items.popleft()
        self._now = max(self._now, start)
        if items:
            self._push_head(items[0][0], key)
            self._sizes[key] -= size
        else:
            self._drop(key)
            if not self._by_key:
                self._now = max(self._now, start + size)
        return item

    def _drop(self, key: Key) -> None:
        del self._by_key[key], self._sizes[key]

    def _push_head(self, start: float, key: Key) -> None:
        self._added += 1
        heappush(self._heads, (start, self._added, key))

    def _set_end(self, key: Key, end: float) -> None:
        """Note where the key's work ends in virtual time; now and then forget the ends that lie in the past."""
        self._ends[key] = end
        if len(self._ends) > self._max_ends:
            self._ends = {each: at for each, at in self._ends.items() if at > self._now}
            self._max_ends = max(_MIN_ENDS, 2 * len(self._ends))


class Slot:
    """One of the slots of a semaphore, which its holder gives back by `release`."""

    __slots__ = ("_is_released", "_key", "_semaphore", "_since_ms")

    def __init__(self, semaphore: "FairSemaphore", key: str, since_ms: int) -> None:
        self._semaphore = semaphore
        self._key = key
        self._since_ms = since_ms
        self._is_released = False

    def release(self) -> None:
        """Give the slot back; a second call does nothing."""
        if not self._is_released:
            self._is_released = True
            self._semaphore._release(self._key, self._since_ms)


class FairSemaphore:
    """Admits at most `slots` callers at once, of each key as many as the `throttle` allows; the others wait.

    `FairQueue` chooses the next waiting key: a key with much waiting work delays another by one turn for each slot,
    however much it has. Work of one key waits up to the size `max_waiting`; more is refused at once (BusyError). While
    no caller waits, acquiring is a few comparisons and no step of the event loop.
    """

    def __init__(self, what: str, slots: int, *, max_waiting: float, throttle: Throttle | None = None) -> None:
        """`what`: the work in words, for the error."""
        self._what = what
        self._slots = slots
        self._max_waiting = max_waiting
        self._throttle = throttle
        self._held: Counter[str] = Counter()
        self._count = 0
        self._queue: FairQueue[str, asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def slot(self, key: str, size: float = 1) -> AsyncIterator[None]:
        """Hold a slot inside the `async with`. BusyError: too much of the key waits."""
        slot = await self.acquire(key, size)
        try:
            yield
        finally:
            slot.release()

    async def acquire(self, key: str, size: float = 1) -> Slot:
        """Wait for a slot and take it; a cancelled caller has none. BusyError: too much of the key waits."""
        if not self._queue and self._count < self._slots and self._may_acquire(key):
            self._take(key)
        else:
            await self._wait(key, size)
        return Slot(self, key, self._now_ms())

    async def _wait(self, key: str, size: float) -> None:
        waiting = self._queue.waiting_size(key)
        if waiting and waiting + size > self._max_waiting:
            raise BusyError(f"too many {self._what} wait already, while others have their turns; try again")
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(key, admitted, size)
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self._queue.discard(key, admitted)
            else:
                self._release(key, self._now_ms())
            raise

    def _release(self, key: str, since_ms: int) -> None:
        self._count -= 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        if self._throttle is not None:
            self._throttle.left(key, since_ms, self._admit)
        self._admit()

    def _take(self, key: str) -> None:
        self._count += 1
        self._held[key] += 1

    def _admit(self) -> None:
        while self._queue and self._count < self._slots:
            taken = self._queue.take(self._may_acquire)
            if taken is None:
                return
            key, admitted = taken
            if not admitted.done():
                self._take(key)
                admitted.set_result(None)

    def _may_acquire(self, key: str) -> bool:
        return self._throttle is None or self._throttle.may_enter(key, self._held[key])

    def _now_ms(self) -> int:
        return 0 if self._throttle is None else self._throttle.now_ms()
