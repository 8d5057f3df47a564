"""Asks the instances of targeting for the audiences of an app's pushes; decides whose fault a failure is.

- An audience that targeting refuses (InputError) can never be resolved: the push fails at once.
- While targeting does not answer (it is down, still reading the log, overloaded, exceeds the deadline, or refuses this
  process, as during a change of certificates) pushes wait, until their time to live is over. A circuit breaker makes
  one attempt at a time then, however many pushes wait.
- Any other error counts against the push, and so does an instance that answers a probe, does not answer the attempt
  that follows, and is another process once it answers again: a request that crashes targeting looks like this. A
  connection that was reset does not count. After MAX_FAILURES failures that count the push fails.

Failures are counted since the start of the process.
"""

import asyncio
import heapq
from collections.abc import Collection
from typing import Protocol

from services.delivery.limits import CircuitBreaker
from services.delivery.waiting_pushes import WaitingPush
from services.domain.bitmap_resolver import AudienceBitmapResolver
from services.domain.recorded_reasons import AttemptsFailed
from services.errors import BusyError, CarillonError, DeadlineError, InputError, PermissionDeniedError, UnavailableError
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger

MAX_FAILURES = 5
"""Failed attempts after which a push ends as failed."""

RETRY_MS = 500
"""Pause after the first failure of a push, or while targeting does not answer; it doubles each time."""

MAX_RETRY_MS = 10_000

ORDER_WAIT_MS = 1000
"""Time for which a push that is being resolved delays the app's later pushes at most."""

_CONCURRENT = 8
_MAX_CALLS = 16


class ResolutionListener(Protocol):
    """Receives the results of resolving the pushes' audiences."""

    def resolved(self, waiting: WaitingPush) -> None:
        """More of the audience is known."""
        ...

    def held_up(self, waiting: WaitingPush) -> None:
        """Later pushes need not wait for this one any more."""
        ...

    def failed(self, waiting: WaitingPush, reason: str) -> None:
        """The audience can never be resolved."""
        ...


Asked = dict[WaitingPush, set["asyncio.Task[CarillonError | None]"]]
"""The calls of each push that instances of targeting have not answered yet."""


class InstanceResolver:
    """Resolves audiences in the shard of one instance, so that pushes start there while another instance is away.

    Attempts are made in the order of the log. At most `_CONCURRENT` attempts of an app run at once, and besides as many
    again that have taken longer than ORDER_WAIT_MS.
    """

    def __init__(
        self, audiences: AudienceBitmapResolver, shard: int, asked: Asked, clock: Clock, listener: ResolutionListener
    ) -> None:
        """`asked` is shared by the resolvers of one app."""
        self._audiences = audiences
        self._shard = shard
        self._asked = asked
        self._clock = clock
        self._listener = listener
        self._breaker = CircuitBreaker(RETRY_MS, MAX_RETRY_MS)
        self._queue: list[tuple[int, WaitingPush]] = []
        self._calls: dict[WaitingPush, asyncio.Task[None]] = {}
        self._slow: set[WaitingPush] = set()
        self._probed: dict[WaitingPush, bytes] = {}
        self._pauses: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def add(self, waiting: WaitingPush) -> None:
        """Resolve the push's audience in the partitions of the shard as soon as it is its turn."""
        if not self._unresolved(waiting):
            return
        if not self._breaker.is_closed:
            self._hold_up(waiting)
        self._enqueue(waiting)
        self._begin_attempts()

    def discard(self, waiting: WaitingPush) -> None:
        """Give up a push that is over; a call that is being made for it is cancelled."""
        self._probed.pop(waiting, None)
        call = self._calls.get(waiting)
        if call is None or call is asyncio.current_task():
            return
        call.cancel()
        self._forget(waiting)  # a task that is cancelled before its first step never does this itself
        self._begin_attempts()

    def stop(self) -> None:
        """Give up all pushes."""
        self._is_stopped = True
        for task in [*self._calls.values(), *self._pauses]:
            if task is not asyncio.current_task():
                task.cancel()

    def _unresolved(self, waiting: WaitingPush) -> list[int]:
        return self._audiences.owned(self._shard, waiting.unresolved)

    def _enqueue(self, waiting: WaitingPush) -> None:
        heapq.heappush(self._queue, (waiting.push.offset, waiting))

    def _begin_attempts(self) -> None:
        while self._queue and self._may_begin():
            waiting = heapq.heappop(self._queue)[1]
            if not waiting.is_over:
                self._calls[waiting] = background.start("resolution of an audience", self._call(waiting))

    def _may_begin(self) -> bool:
        active = len(self._calls) - len(self._slow)
        if self._is_stopped or len(self._calls) >= _MAX_CALLS:
            return False
        if self._breaker.is_closed:
            return active < _CONCURRENT
        return not active and not self._breaker.is_open(self._clock.now_ms())

    async def _call(self, waiting: WaitingPush) -> None:
        try:
            await self._attempt(waiting)
        finally:
            self._forget(waiting)
            self._begin_attempts()

    def _forget(self, waiting: WaitingPush) -> None:
        self._calls.pop(waiting, None)
        self._slow.discard(waiting)

    async def _attempt(self, waiting: WaitingPush) -> None:
        is_probed = waiting.is_held_up
        asking = asyncio.create_task(self._ask(waiting, is_probed))
        self._note_asked(waiting, asking)
        try:
            await self._within_order_wait({asking})
            if not asking.done():
                self._slow.add(waiting)
                self._hold_up(waiting)
                self._suspect()
                self._begin_attempts()
            error = await asking
        finally:
            asking.cancel()
        if error is None:
            self._breaker.close()
        else:
            if not waiting.is_held_up:  # the other instances' answers come first, so that no later push passes it there
                await self._within_order_wait(self._asked.get(waiting, ()))
            self._hold_up(waiting)
            self._react(waiting, error, is_probed)
        self._listener.resolved(waiting)

    def _note_asked(self, waiting: WaitingPush, asking: "asyncio.Task[CarillonError | None]") -> None:
        """Keep the call in `asked` until it is answered or given up."""

        def forget(_: object) -> None:
            of_push = self._asked[waiting]
            of_push.discard(asking)
            if not of_push:
                del self._asked[waiting]

        self._asked.setdefault(waiting, set()).add(asking)
        asking.add_done_callback(forget)

    async def _within_order_wait(self, asking: Collection["asyncio.Task[CarillonError | None]"]) -> None:
        """Return once all have ended, or after ORDER_WAIT_MS."""
        deadline_ms = self._clock.now_ms() + ORDER_WAIT_MS
        timer = asyncio.create_task(self._clock.sleep_until(deadline_ms))
        try:
            left = set(asking)
            while left and not timer.done():
                await asyncio.wait([*left, timer], return_when=asyncio.FIRST_COMPLETED)
                left = {task for task in left if not task.done()}
        finally:
            timer.cancel()

    async def _ask(self, waiting: WaitingPush, is_probed: bool) -> CarillonError | None:
        """Make one attempt; return the error, a BusyError where targeting is known not to answer."""
        partitions = self._unresolved(waiting)
        if is_probed:
            try:
                process = await self._audiences.probe(self._shard)
            except UnavailableError as unavailable:
                return BusyError(str(unavailable))
            if self._probed.setdefault(waiting, process) != process and _count_failure(waiting):
                return UnavailableError(waiting.last_error)
            self._probed[waiting] = process
        try:
            audiences, error, attributes_until = await self._audiences.resolve(waiting.push.send, partitions)
        except Exception as unexpected:
            logger.error("an audience could not be resolved", msgid=waiting.msgid, exc_info=unexpected)
            return CarillonError("internal error")
        waiting.audiences.update(audiences)
        waiting.attributes_until.update(attributes_until)
        if not isinstance(error, UnavailableError):
            self._probed.pop(waiting, None)
        return error

    def _react(self, waiting: WaitingPush, error: CarillonError, is_probed: bool) -> None:
        logger.warning("an audience is not resolved", msgid=waiting.msgid, app=waiting.appkey, error=str(error))
        waiting.last_error = str(error)
        match error:
            case BusyError() | DeadlineError() | PermissionDeniedError():
                self._wait_for_targeting(waiting)
            case UnavailableError() if not is_probed:
                self._wait_for_targeting(waiting)
            case UnavailableError():
                self._retry(waiting, error)
            case InputError():
                self._breaker.close()
                self._listener.failed(waiting, str(error))
            case _:
                self._breaker.close()
                _count_failure(waiting)
                self._retry(waiting, error)

    def _wait_for_targeting(self, waiting: WaitingPush) -> None:
        self._suspect()
        self._enqueue(waiting)

    def _retry(self, waiting: WaitingPush, error: CarillonError) -> None:
        """Try again after a pause that grows each time; with too many failures the push fails."""
        if waiting.failures >= MAX_FAILURES:
            self._listener.failed(waiting, str(AttemptsFailed(waiting.failures, str(error))))
            return
        pause_ms = min(RETRY_MS << min(waiting.retries, 30), MAX_RETRY_MS)
        waiting.retries += 1
        self._after(self._clock.now_ms() + pause_ms, waiting)

    def _suspect(self) -> None:
        """Hold up all pushes that are not resolved: targeting does not answer, and it may take long."""
        if not self._breaker.trip(self._clock.now_ms()):
            return
        for _, waiting in self._queue:
            self._hold_up(waiting)
        self._after(self._breaker.open_until_ms)

    def _hold_up(self, waiting: WaitingPush) -> None:
        if not waiting.is_held_up:
            self._listener.held_up(waiting)

    def _after(self, moment_ms: int, waiting: WaitingPush | None = None) -> None:
        """Begin attempts at the moment, with the push if one is given."""

        async def pause() -> None:
            await self._clock.sleep_until(moment_ms)
            if waiting is not None:
                self._enqueue(waiting)
            self._begin_attempts()

        task = background.start("pause before a resolution", pause())
        self._pauses.add(task)
        task.add_done_callback(self._pauses.discard)


def _count_failure(waiting: WaitingPush) -> bool:
    """Count a failed attempt; return whether it was the last one."""
    waiting.failures += 1
    return waiting.failures >= MAX_FAILURES


# Resolves the audiences of one app's pushes.


class AppResolver:
    """Asks all instances of targeting; the partitions of one that does not answer delay no others."""

    def __init__(self, audiences: AudienceBitmapResolver, clock: Clock, listener: ResolutionListener) -> None:
        asked: Asked = {}
        self._instances = [
            InstanceResolver(audiences, shard, asked, clock, listener) for shard in range(audiences.shards)
        ]

    def add(self, waiting: WaitingPush) -> None:
        """Resolve the push's audience as soon as it is its turn."""
        for instance in self._instances:
            if not waiting.is_over:
                instance.add(waiting)

    def discard(self, waiting: WaitingPush) -> None:
        """Give up a push that is over; the calls that are being made for it are cancelled."""
        for instance in self._instances:
            instance.discard(waiting)

    def stop(self) -> None:
        """Give up all pushes."""
        for instance in self._instances:
            instance.stop()
