"""Limits concurrent requests fairly: one app's many or expensive requests delay those of other apps only a little.

Four semaphores (`services.net.fairness`) hold back work that is cheap to ask for. The first is for all work in
proportion to a large body: parsing, sign and checks, whether it is refused or not. Its turns go to addresses until the
sign is verified, because only then the app is known, and to apps afterwards; it limits once any app has been active in
the last 10 s. An app that is alone passes the other three without waiting. Beside other apps of the last 10 s:

- of large bodies one step is done at a time, at most a quarter of the time for all together;
- of an app's authenticated requests a bounded number is worked on at once;
- of an app's broadcasts, multicasts and long lists of tokens or aliases, be it for a push or for string tags, one is
  accepted at a time: the next when delivery has started it, or after the time that so many targets take, and after a
  rest of three times as long. Delivery, targeting, the gateway and the log then serve others most of the time;
- of an app's queries of statistics one runs at a time, at most half of the time.

Waiting requests are bounded; further ones get HTTP 429. Each edge process has semaphores of its own.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from falcon.asgi import Request

from edge.core.answers import refusal
from edge.core.parsing import canonical
from edge.core.parsing.body import Application, close_with
from edge.core.parsing.canonical import Result, Steps
from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import SendPush
from services.errors import BusyError, CarillonError, NotFoundError, TooManyRequestsError, TryLaterError
from services.net.fairness import FairSemaphore, KeyActivity, SharedThrottle, Slot, Throttle
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.peers import Peers

LARGE_BODY_BYTES = 16 * 1024
"""Size from which a body is large: work in proportion to it waits for the turn of its address or app."""

LONG_LIST = 100
"""Tokens and aliases up to which a request is handled as one for a single target."""

REQUESTS_BESIDE_OTHERS = 16
"""Slots of one app for authenticated requests while other apps are active."""

_SLOTS = 4096
"""Slots of a semaphore for all apps together. The throttle lowers them for each app while other apps are active."""

_UNIT_BYTES = 16 * 1024
"""Bytes of a body that weigh as much as one more request in the turns of the apps."""

_MAX_WAITING_REQUESTS = 4096
_MAX_WAITING_BODIES = 1024

MAX_WAITING_PER_KIND = 100
"""Upper bound of the waiting broadcasts and multicasts, and, counted apart, of the waiting queries of statistics."""

_POLL_MS = 20
"""Interval at which delivery is asked whether it has started a broadcast."""

_TARGET_US = 60
"""CPU time of one target of a list in all roles, us: its start, frame, acknowledgement and outcomes."""

_MAX_HELD_MS = 2_000
"""Upper bound of the time for which a broadcast keeps its slot until delivery has started it."""

_DELIVERY_CALL_S = 2.0
"""Deadline of one question to delivery."""

_RETRY_AFTER_S = 1
_STOPS = "timeout graceful shutdown exceeded"
"""The end of the message with which a stopping uvicorn cancels the requests in progress."""
_SLOT = "carillon.slot"
RECEIVE = "carillon.receive"
"""Key of the ASGI `receive` function in the scope of a request."""

_BODY_REST = 3
"""Rest of the semaphore after a step of work on a large body, as a multiple of the step's time."""

_REST = 3
"""Rest after a broadcast or multicast beside other apps, as a multiple of the time until delivery had started it."""


class RequestLimiter:
    """Limits the process's concurrent requests. A request holds one slot, which `application` releases at its end."""

    def __init__(self, clock: Clock, peers: Peers) -> None:
        self._clock = clock
        self._activity = activity = KeyActivity(clock.now_ms)
        self._deliveries = [DeliveryServiceStub(channel) for channel in peers.all("delivery")]
        self._bodies = FairSemaphore(
            "large requests",
            1,
            max_waiting=_MAX_WAITING_BODIES,
            throttle=SharedThrottle(clock, activity, 1, rest=_BODY_REST),
        )
        self._requests = FairSemaphore(
            "requests",
            _SLOTS,
            max_waiting=_MAX_WAITING_REQUESTS,
            throttle=Throttle(clock, activity, REQUESTS_BESIDE_OTHERS),
        )
        self._broadcasts_and_multicasts = FairSemaphore(
            "broadcasts, multicasts and long lists",
            _SLOTS,
            max_waiting=MAX_WAITING_PER_KIND,
            throttle=Throttle(clock, activity, 1, rest=_REST),
        )
        self._queries = FairSemaphore(
            "queries",
            _SLOTS,
            max_waiting=MAX_WAITING_PER_KIND,
            throttle=Throttle(clock, activity, 1, rest=1),
        )
        self._starting: set[asyncio.Task[None]] = set()

    def application(self, application: Application) -> Application:
        """Return the ASGI application that releases the slot of each request at its end.

        A request that a stopping uvicorn cuts off is answered as a fault of the service: it may have been carried out.
        """

        async def limited(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
            scope[RECEIVE] = receive
            try:
                await application(scope, receive, send)
            except asyncio.CancelledError as error:
                if not _is_stop(error):
                    raise
                logger.error("a request failed", path=scope["path"], error="the service stopped before its answer")
                await close_with(send, 200, refusal(CarillonError()))
            finally:
                _release(scope)
                del scope[RECEIVE]  # a cycle of references in each request would be garbage for the collector alone

        return limited

    async def in_turns(self, key: str, size: int, steps: Steps[Result]) -> Result:
        """Do work on a body of `size` bytes, each step in a turn of the key; return the result.

        `key`: the address of the body until its sign is verified, then the app. TooManyRequestsError: too much waits.
        """
        if size < LARGE_BODY_BYTES:
            return canonical.finished(steps)
        while True:
            with busy_as_too_many():
                slot = await self._bodies.acquire(key, size // LARGE_BODY_BYTES)
            try:
                with _no_collection():
                    next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                slot.release()

    async def enter(self, request: Request, appkey: str, size: int) -> None:
        """Wait for a slot for an authenticated request of `size` bytes. TooManyRequestsError: too many wait."""
        self._activity.seen(appkey)
        with busy_as_too_many():
            request.scope[_SLOT] = await self._requests.acquire(appkey, 1 + size // _UNIT_BYTES)

    async def enter_broadcast_or_multicast(self, request: Request, appkey: str) -> None:
        """Exchange the request's slot for one of broadcasts, multicasts and long lists, and wait for it.

        Errors as for `enter`.
        """
        _release(request.scope)
        with busy_as_too_many():
            request.scope[_SLOT] = await self._broadcasts_and_multicasts.acquire(appkey)

    async def enter_list(self, request: Request, appkey: str, targets: int) -> None:
        """Wait as `enter_broadcast_or_multicast` does for a request with a long list of targets. Errors as there."""
        if targets > LONG_LIST:
            await self.enter_broadcast_or_multicast(request, appkey)

    async def enter_query(self, request: Request, appkey: str) -> None:
        """Exchange the request's slot for one of queries of analytics, and wait for it. Errors as for `enter`."""
        _release(request.scope)
        with busy_as_too_many():
            request.scope[_SLOT] = await self._queries.acquire(appkey)

    def keep_until_started(self, request: Request, appkey: str, push: SendPush) -> None:
        """Keep the slot of a broadcast or multicast until delivery has started `push`, the last of the request's.

        The push may be of another app than the slot, which the first app of a request takes.
        """
        slot = self._kept_slot(request, appkey)
        if slot is not None:
            task = background.start("slot of a broadcast", self._release_when_started(slot, push))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    def keep_for_targets(self, request: Request, appkey: str, targets: int) -> None:
        """Keep the slot of a long list for the time that its targets take in the roles behind the edge."""
        slot = self._kept_slot(request, appkey) if targets > LONG_LIST else None
        if slot is not None:
            held_ms = min(targets * _TARGET_US // 1000, _MAX_HELD_MS)
            self._clock.call_at(self._clock.now_ms() + held_ms, slot.release)

    def _kept_slot(self, request: Request, appkey: str) -> Slot | None:
        """Take the slot from the request, so that the slot outlives it. None: no slot, or the app is alone."""
        slot: Slot | None = request.scope.pop(_SLOT, None)
        if slot is not None and self._activity.is_alone(appkey):
            slot.release()
            return None
        return slot

    async def _release_when_started(self, slot: Slot, push: SendPush) -> None:
        end_ms = self._clock.now_ms() + _MAX_HELD_MS
        request = GetBroadcastRequest(appkey=push.appkey, msgid=push.msgid)
        try:
            while self._clock.now_ms() < end_ms:
                if not await self._is_starting(request):
                    return
                await self._clock.sleep_until(self._clock.now_ms() + _POLL_MS)
        finally:
            slot.release()

    async def _is_starting(self, request: GetBroadcastRequest) -> bool:
        """Return whether an instance of delivery has still to start the push; False while delivery does not answer."""
        calls = (delivery.GetBroadcast(request, timeout=_DELIVERY_CALL_S) for delivery in self._deliveries)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        # NotFoundError: the instance has not read the push yet.
        return any(
            isinstance(answer, NotFoundError) or (not isinstance(answer, BaseException) and answer.is_starting)
            for answer in answers
        )


@contextmanager
def busy_as_too_many() -> Iterator[None]:
    """Turn the BusyError of a semaphore, here or in another role, into HTTP 429, and a wait that a stopping uvicorn
    cuts off into HTTP 503: nothing was done.
    """
    try:
        yield
    except BusyError as error:
        raise TooManyRequestsError(error.code or str(error), _RETRY_AFTER_S, **error.fields) from None
    except asyncio.CancelledError as error:
        if not _is_stop(error):
            raise
        raise TryLaterError("the service is stopping; repeat the request", _RETRY_AFTER_S) from None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hold back the garbage collector, which would look again and again for garbage among the parts of a large body."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_stop(error: asyncio.CancelledError) -> bool:
    """Return whether uvicorn has cancelled the request because it stops."""
    return str(error).endswith(_STOPS)


def _release(scope: Any) -> None:
    slot: Slot | None = scope.pop(_SLOT, None)
    if slot is not None:
        slot.release()
