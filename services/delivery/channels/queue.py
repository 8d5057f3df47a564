"""The queue of an app's pushes to a push service: chunks in turns, rates, delays, a bounded number in flight."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from services.delivery.channels import Answer, Credentials, Request
from services.delivery.channels.progress import ClaimedDeviceMessage, MessageRequest, PushProgress
from services.delivery.limits import RateLimiter
from services.net.fairness import FairQueue
from services.process import background
from services.process.clock import Clock

# Round-robin over an app's pushes, each within its own rate limit.

_CHUNK_SIZE = 100


class Chunk(NamedTuple, Generic[Credentials, Request]):
    """Device numbers of one partition that a push is sent to next."""

    progress: PushProgress[Credentials, Request]
    partition: int
    numbers: list[int]


class RoundRobin(Generic[Credentials, Request]):
    """Gives the pushes of an app their turns, chunk by chunk.

    `on_ready` is called when there are chunks to take; `on_finished` when a push has nothing in flight.

    `shards` instances send a push at once, each at its share of the push's rate.
    """

    def __init__(
        self,
        clock: Clock,
        shards: int,
        on_ready: Callable[[], None],
        on_finished: Callable[[PushProgress[Credentials, Request]], None],
    ) -> None:
        self._clock = clock
        self._shards = shards
        self._on_ready = on_ready
        self._on_finished = on_finished
        self._turns: FairQueue[int, PushProgress[Credentials, Request]] = FairQueue()
        self._limiters: set[asyncio.Task[None]] = set()

    def add(self, progress: PushProgress[Credentials, Request]) -> None:
        """Give the push turns until its pass is complete."""
        if progress.push.send.qps:
            task = background.start("rate limit of a push", self._limit(progress))
            self._limiters.add(task)
            task.add_done_callback(self._limiters.discard)
        else:
            self._put(progress)
            self._on_ready()

    def take(self, count: int) -> list[Chunk[Credentials, Request]]:
        """Take chunks with up to `count` devices. Each chunk is in flight in its push until the caller releases it."""
        chunks: list[Chunk[Credentials, Request]] = []
        while count > 0 and (turn := self._turns.take()):
            progress = turn[1]
            if progress.is_running(self._clock.now_ms()):
                if chunk := self._next_chunk(progress, count):
                    chunks.append(chunk)
                    count -= len(chunk.numbers)
                if not progress.push.send.qps and not progress.is_pass_complete:
                    self._put(progress)
            progress.turn_done.set()
            if not progress.in_flight:
                self._on_finished(progress)
        return chunks

    def close(self) -> None:
        for task in self._limiters:
            task.cancel()

    def _put(self, progress: PushProgress[Credentials, Request]) -> None:
        self._turns.put(progress.push.send.msgid, progress)

    def _next_chunk(
        self, progress: PushProgress[Credentials, Request], count: int
    ) -> Chunk[Credentials, Request] | None:
        taken = progress.take(min(count, progress.allowance if progress.push.send.qps else _CHUNK_SIZE))
        if taken is None:
            return None
        chunk = Chunk(progress, *taken)
        progress.in_flight += 1
        progress.allowance -= len(chunk.numbers)
        return chunk

    def _has_turns(self, progress: PushProgress[Credentials, Request], passes: int) -> bool:
        """Return whether the pass with this number goes on and has devices left."""
        is_same = progress.passes == passes and not progress.is_pass_complete
        return is_same and progress.is_running(self._clock.now_ms())

    async def _limit(self, progress: PushProgress[Credentials, Request]) -> None:
        """Give a push with a rate limit one turn at a time, for as many devices as the limiter allows.

        It ends with the pass, even if the next pass, which has turns of its own, begins before the last turn is noticed
        here.
        """
        limiter, passes = RateLimiter(self._clock, progress.push.send.qps / self._shards), progress.passes
        while self._has_turns(progress, passes):
            progress.allowance = allowance = await limiter.wait_allowed(_CHUNK_SIZE)
            progress.turn_done.clear()
            self._put(progress)
            self._on_ready()
            await progress.turn_done.wait()
            limiter.consume(allowance - progress.allowance)


# Priority queue of items by due time, with one timer for the earliest.

Item = TypeVar("Item")


class DelayQueue(Generic[Item]):
    """Calls `on_due` when an item is due; `take_due` then removes it."""

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._heap: list[tuple[int, int, Item]] = []
        self._sequence = itertools.count()
        self._timer: asyncio.Task[None] | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, due_ms: int, item: Item) -> None:
        heapq.heappush(self._heap, (due_ms, next(self._sequence), item))
        if self._timer is None or due_ms < self._timer_ms:
            self._start_timer()

    def take_due(self) -> list[Item]:
        """Remove and return the items that are due, in the order of their times."""
        due = []
        while self._heap and self._heap[0][0] <= self._clock.now_ms():
            due.append(heapq.heappop(self._heap)[2])
        if self._timer is None and self._heap:
            self._start_timer()
        return due

    def remove(self, is_unneeded: Callable[[Item], bool]) -> list[Item]:
        """Remove the items for which the predicate holds, and return them."""
        removed = [entry[2] for entry in self._heap if is_unneeded(entry[2])]
        if removed:
            self._heap = [entry for entry in self._heap if not is_unneeded(entry[2])]
            heapq.heapify(self._heap)
        return removed

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        self.close()
        self._timer_ms = self._heap[0][0]
        self._timer = background.start("timer of retries", self._sleep_until(self._timer_ms))

    async def _sleep_until(self, due_ms: int) -> None:
        await self._clock.sleep_until(due_ms)
        self._timer = None
        self._on_due()


_CREDENTIALS_CHECK_MS = 5_000
"""Longest wait before another pass while the app has no credentials."""


_Delayed: TypeAlias = MessageRequest[Credentials, Request, Answer] | PushProgress[Credentials, Request] | None
"""A message or a pass that waits for its time; None: look again then for what to send."""


class PushSchedule(Generic[Credentials, Request, Answer]):
    """Chooses the messages of one app to send next.

    `wake_up` is called when there may be something to send; `has_credentials` returns whether the app has credentials.
    `max_delayed`: upper bound of the messages that wait for a retry; those beyond it wait for the push's next pass.
    Claimed messages belong to no pass; the code that claims them bounds their number.
    """

    def __init__(
        self,
        clock: Clock,
        shards: int,
        wake_up: Callable[[], None],
        has_credentials: Callable[[], bool],
        max_delayed: int,
    ) -> None:
        self._clock = clock
        self._has_credentials = has_credentials
        self._max_delayed = max_delayed
        self.delayed_claims = 0
        """Claimed messages that wait for a retry, with those that are not needed any more."""

        self._purge_at = max_delayed
        self._running: set[PushProgress[Credentials, Request]] = set()
        self._turns = RoundRobin(clock, shards, wake_up, self._end_if_done)
        self._ready: deque[MessageRequest[Credentials, Request, Answer]] = deque()
        self._delayed: DelayQueue[_Delayed[Credentials, Request, Answer]] = DelayQueue(clock, wake_up)

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(self, progress: PushProgress[Credentials, Request]) -> None:
        self._running.add(progress)
        self._turns.add(progress)

    def keep(self, progress: PushProgress[Credentials, Request]) -> None:
        """Count a push with claimed messages in flight as running until they are concluded."""
        self._running.add(progress)

    def collect_due(self) -> None:
        """Make ready the messages and passes whose delay is over."""
        for item in self._delayed.take_due():
            if isinstance(item, PushProgress):
                self._turns.add(item)
            elif item is not None:
                self.delayed_claims -= isinstance(item, ClaimedDeviceMessage)
                self._ready.append(item)

    def take_ready(self, count: int) -> list[MessageRequest[Credentials, Request, Answer]]:
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def take_ready_claims(self) -> list[ClaimedDeviceMessage[Credentials, Request, Answer]]:
        """Take all claimed messages that are ready."""
        claimed = [message for message in self._ready if isinstance(message, ClaimedDeviceMessage)]
        if claimed:
            self._ready = deque(message for message in self._ready if not isinstance(message, ClaimedDeviceMessage))
        return claimed

    def take_unneeded_claims(self) -> list[ClaimedDeviceMessage[Credentials, Request, Answer]]:
        """Take delayed claimed messages that may not be requested any more, if the queue has doubled since the last
        call.

        A service may ask for long delays, and a message be recalled and claimed again many times meanwhile.
        """
        if len(self._delayed) <= self._purge_at:
            return []
        now_ms = self._clock.now_ms()
        unneeded = self._delayed.remove(
            lambda item: isinstance(item, ClaimedDeviceMessage) and not item.is_pending(now_ms)
        )
        self.delayed_claims -= len(unneeded)
        self._purge_at = max(self._max_delayed, 2 * len(self._delayed))
        return [message for message in unneeded if isinstance(message, ClaimedDeviceMessage)]

    def take_chunks(self, count: int) -> list[Chunk[Credentials, Request]]:
        """Chunks with up to `count` devices in all; the caller releases each chunk's push once."""
        return self._turns.take(count)

    def resend(self, message: MessageRequest[Credentials, Request, Answer]) -> None:
        """Make a message ready at once."""
        self._ready.append(message)

    def postpone(self, message: MessageRequest[Credentials, Request, Answer], due_ms: int) -> None:
        """Make a message ready at a time; if too many are delayed, leave its device to the push's next pass."""
        is_claimed = isinstance(message, ClaimedDeviceMessage)
        if is_claimed or len(self._delayed) + len(self._ready) < self._max_delayed:
            self._delayed.put(due_ms, message)
            self.delayed_claims += is_claimed
        else:
            message.progress.needs_pass = True
            self.release(message.progress)

    def wake_at(self, time_ms: int) -> None:
        self._delayed.put(time_ms, None)

    def release(self, progress: PushProgress[Credentials, Request]) -> None:
        """Note that a chunk or a message of the push is concluded."""
        progress.in_flight -= 1
        if not progress.in_flight:
            self._end_if_done(progress)

    def close(self) -> None:
        self._delayed.close()
        self._turns.close()

    def _end_if_done(self, progress: PushProgress[Credentials, Request]) -> None:
        """With nothing of the push in flight: continue its pass, schedule another one, or end it."""
        now_ms = self._clock.now_ms()
        is_running = progress.is_running(now_ms)
        if is_running and not progress.is_pass_complete:
            return
        if is_running and progress.needs_pass:
            wait_ms = progress.start_pass()
            self._delayed.put(
                now_ms + (wait_ms if self._has_credentials() else min(wait_ms, _CREDENTIALS_CHECK_MS)), progress
            )
        else:
            self._running.discard(progress)


# Devices to which the service wants no messages sent for a while.


class DeviceDelays:
    """The ends of the delays by address; beyond `capacity` addresses no more are added."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._until_ms: dict[str, int] = {}

    def delay(self, address: str, until_ms: int, now_ms: int) -> None:
        if len(self._until_ms) >= self._capacity:
            self._until_ms = {known: end_ms for known, end_ms in self._until_ms.items() if end_ms > now_ms}
        if len(self._until_ms) < self._capacity:
            self._until_ms[address] = until_ms

    def until_ms(self, address: str, now_ms: int) -> int | None:
        """The end of the address's delay; None if it has none, or it is over."""
        end_ms = self._until_ms.get(address)
        if end_ms is not None and end_ms <= now_ms:
            del self._until_ms[address]
            return None
        return end_ms


# Bounds the messages of an app that wait for a connection or an answer.


class InFlightWindow:
    """Counts messages in flight; `on_half_empty` is called on each response while at most half the window is used."""

    def __init__(self, size: int, on_half_empty: Callable[[], None]) -> None:
        self._size = size
        self._on_half_empty = on_half_empty
        self._in_flight = 0
        self.empty = asyncio.Event()
        """Set while nothing is in flight."""
        self.empty.set()

    def free(self, is_probing: bool) -> int:
        """The number of messages that may be sent now; while the circuit is half-open, one at a time."""
        return (1 if is_probing else self._size) - self._in_flight

    def enter(self) -> None:
        self._in_flight += 1
        self.empty.clear()

    def leave(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self.empty.set()
        if self._in_flight <= self._size // 2:
            self._on_half_empty()
