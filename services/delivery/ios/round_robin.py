"""Whose turn it is: an app's pushes share what may be sent, at their speed, if they have one."""

import asyncio
from collections import deque
from collections.abc import Callable

from services.delivery.android.rate_limiter import RateLimiter
from services.delivery.ios.push_progress import Work
from services.runtime.process.clock import Clock

Chunk = tuple[Work, int, list[int]]
"""Some devices of a push: partition, numbers."""

_SHARE = 100


class Turns:
    """`ring` is called when there is something to take; `leave` is told of a work that nothing is left of."""

    def __init__(self, clock: Clock, shards: int, ring: Callable[[], None], leave: Callable[[Work], None]) -> None:
        self._clock = clock
        self._shards = shards
        self._ring = ring
        self._leave = leave
        self._works: deque[Work] = deque()
        self._pacing: set[asyncio.Task[None]] = set()

    def enter(self, work: Work) -> None:
        """The work takes turns until it is walked."""
        if work.push.send.qps:
            task = asyncio.create_task(self._pace(work))
            self._pacing.add(task)
            task.add_done_callback(self._pacing.discard)
        else:
            self._works.append(work)
            self._ring()

    def take(self, most: int) -> list[Chunk]:
        """Up to so many devices. Each chunk counts as one sending of its work, for the caller to end."""
        chunks: list[Chunk] = []
        while self._works and most > 0:
            work = self._works.popleft()
            if work.is_alive(self._clock.now_ms()):
                if chunk := self._share(work, most):
                    chunks.append(chunk)
                    most -= len(chunk[2])
                if not work.push.send.qps and not work.is_walked:
                    self._works.append(work)
            work.turn.set()
            if not work.in_flight:
                self._leave(work)
        return chunks

    def close(self) -> None:
        for task in self._pacing:
            task.cancel()

    def _share(self, work: Work, most: int) -> Chunk | None:
        taken = work.take(min(most, work.allowed if work.push.send.qps else _SHARE))
        if taken is None:
            return None
        work.in_flight += 1
        work.allowed -= len(taken[1])
        return work, *taken

    async def _pace(self, work: Work) -> None:
        limiter = RateLimiter(self._clock, work.push.send.qps / self._shards)
        while not work.is_walked and work.is_alive(self._clock.now_ms()):
            work.allowed = allowed = await limiter.wait_allowed(_SHARE)
            work.turn.clear()
            self._works.append(work)
            self._ring()
            await work.turn.wait()
            limiter.consume(allowed - work.allowed)
