"""Round-robin over an app's pushes, each within its own rate limit."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from services.delivery.ios.push_progress import PushProgress
from services.delivery.limits.rate_limiter import RateLimiter
from services.runtime.fairness.queue import FairQueue
from services.runtime.process import background
from services.runtime.process.clock import Clock

_CHUNK_SIZE = 100


class Chunk(NamedTuple):
    """Device numbers of one partition that a push is sent to next."""

    progress: PushProgress
    partition: int
    numbers: list[int]


class RoundRobin:
    """Gives the pushes of an app their turns, chunk by chunk.

    `on_ready` is called when there are chunks to take; `on_finished` when a push has nothing in flight.

    `shards` instances send a push at once, each at its share of the push's rate.
    """

    def __init__(
        self,
        clock: Clock,
        shards: int,
        on_ready: Callable[[], None],
        on_finished: Callable[[PushProgress], None],
    ) -> None:
        self._clock = clock
        self._shards = shards
        self._on_ready = on_ready
        self._on_finished = on_finished
        self._turns: FairQueue[int, PushProgress] = FairQueue()
        self._limiters: set[asyncio.Task[None]] = set()

    def add(self, progress: PushProgress) -> None:
        """Give the push turns until its pass is complete."""
        if progress.push.send.qps:
            task = background.start("rate limit of an iOS push", self._limit(progress))
            self._limiters.add(task)
            task.add_done_callback(self._limiters.discard)
        else:
            self._put(progress)
            self._on_ready()

    def take(self, count: int) -> list[Chunk]:
        """Take chunks with up to `count` devices. Each chunk is in flight in its push until the caller releases it."""
        chunks: list[Chunk] = []
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

    def _put(self, progress: PushProgress) -> None:
        self._turns.put(progress.push.send.msgid, progress)

    def _next_chunk(self, progress: PushProgress, count: int) -> Chunk | None:
        taken = progress.take(min(count, progress.allowance if progress.push.send.qps else _CHUNK_SIZE))
        if taken is None:
            return None
        chunk = Chunk(progress, *taken)
        progress.in_flight += 1
        progress.allowance -= len(chunk.numbers)
        return chunk

    def _has_turns(self, progress: PushProgress, passes: int) -> bool:
        """Return whether the pass before which `passes` others began goes on: devices are left in it."""
        is_same = progress.passes == passes and not progress.is_pass_complete
        return is_same and progress.is_running(self._clock.now_ms())

    async def _limit(self, progress: PushProgress) -> None:
        """Give a push with a rate limit one turn at a time, for as many devices as the limiter allows.

        It ends with the pass, also where the next one begins before the last turn is noticed here: that one is added
        anew.
        """
        limiter, passes = RateLimiter(self._clock, progress.push.send.qps / self._shards), progress.passes
        while self._has_turns(progress, passes):
            progress.allowance = allowance = await limiter.wait_allowed(_CHUNK_SIZE)
            progress.turn_done.clear()
            self._put(progress)
            self._on_ready()
            await progress.turn_done.wait()
            limiter.consume(allowance - progress.allowance)
