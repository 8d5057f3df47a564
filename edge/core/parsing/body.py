"""Reads request bodies, bounded in size and time, and in bytes for all whose sign is not verified yet."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import falcon
import msgspec
from falcon.asgi import Request

from edge.core.answers import MEDIA_TYPE, Reply, TransportError
from services.errors import InputError
from services.process.metrics import BODIES_REFUSED

# The byte budget of request bodies whose sign is not verified yet, which anybody can send.
#
# The bodies of a process share one budget. Each counts with the bytes that have arrived, not with those that it
# announces. No body waits for room: as soon as the budget is exceeded, the address that holds the most bytes loses
# its largest body, the newest of equal ones, whose request is answered with HTTP 503 and Retry-After. So what one
# address sends costs other addresses nothing, and a small body is refused last.

RETRY_AFTER_S = 1


class BodyBudget:
    """Counts the bytes of the unverified bodies of one process."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bodies: dict[str, dict[UnverifiedBody, None]] = {}
        self._by_address: Counter[str] = Counter()
        self.held_bytes = 0

    def body(self, address: str) -> "UnverifiedBody":
        """Return a body from this address, which counts while its `with` block runs."""
        return UnverifiedBody(self, address)

    def enter(self, body: "UnverifiedBody") -> None:
        self._bodies.setdefault(body.address, {})[body] = None

    def leave(self, body: "UnverifiedBody") -> None:
        bodies = self._bodies.get(body.address, {})
        if body not in bodies:
            return
        del bodies[body]
        self.held_bytes -= body.size
        self._by_address[body.address] -= body.size
        if not bodies:
            del self._bodies[body.address]
            del self._by_address[body.address]

    def grow(self, body: "UnverifiedBody", size: int) -> None:
        self._by_address[body.address] += size
        self.held_bytes += size
        while self.held_bytes > self._limit_bytes:
            heaviest = max(self._by_address, key=self._by_address.__getitem__)
            refused = max(reversed(self._bodies[heaviest]), key=lambda held: held.size)
            self.leave(refused)
            BODIES_REFUSED.inc()
            refused.refuse()


class UnverifiedBody:
    """One body, from its first byte until its sign is verified. A context manager of the task that reads it."""

    __slots__ = ("_budget", "_is_refused", "_task", "address", "size")

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self._budget = budget
        self._is_refused = False
        self._task: asyncio.Task[object] | None = None
        self.address = address
        self.size = 0

    def __enter__(self) -> "UnverifiedBody":
        self._task = asyncio.current_task()
        self._budget.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.leave(self)
        # A second cancel, such as that of a stopping uvicorn, leaves the count above 0 and must still end the task.
        if self._is_refused and kind is asyncio.CancelledError and self._task is not None and not self._task.uncancel():
            raise _busy() from None

    def add(self, size: int) -> None:
        """Count `size` more bytes. HTTP 503: the budget is exceeded, and this body is refused."""
        self.size += size
        self._budget.grow(self, size)
        if self._is_refused:
            raise _busy()

    def refuse(self) -> None:
        """End the request with HTTP 503, wherever it waits."""
        self._is_refused = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


def _busy() -> falcon.HTTPServiceUnavailable:
    return falcon.HTTPServiceUnavailable(
        description="too many request bodies at once; repeat the request", retry_after=RETRY_AFTER_S
    )


MAX_BODY_BYTES = 1024 * 1024
BODY_S = 30.0
"""Time in which a body must arrive, seconds."""

_VERSIONS = ("1.0", "1.1")

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]


async def read_body(request: Request, limit: int = MAX_BODY_BYTES, counted: UnverifiedBody | None = None) -> bytes:
    """Return the whole body; its bytes are `counted` as they arrive.

    HTTP 413: larger than `limit` bytes; InputError: the connection ended inside the body. Other errors as for
    UnverifiedBody.add.
    """
    announced = request.content_length
    if announced is not None and announced > limit:
        raise _too_large(limit)
    body = bytearray()  # a list of its parts would take 40 times as much memory when each is one byte
    async for part in request.stream:
        if counted is not None:
            counted.add(len(part))
        body += part
        if len(body) > limit:
            raise _too_large(limit)
    if announced is not None and len(body) != announced:
        raise InputError("the body was cut off")
    return bytes(body)


def _too_large(limit: int) -> falcon.HTTPError:
    return falcon.HTTPError(413, description=f"the body is larger than {limit} bytes")


class BodyTimeout:
    """ASGI middleware that answers HTTP 408 when a body does not arrive in time, and 505 to other versions of HTTP."""

    def __init__(self, application: Application, seconds: float = BODY_S) -> None:
        self._application = application
        self._seconds = seconds

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope.get("http_version", "1.1") not in _VERSIONS:
            await refuse(send, 505, "the version of HTTP must be 1.0 or 1.1")
            return
        receive_in_time = _ReceiveInTime(receive, self._seconds)
        try:
            await self._application(scope, receive_in_time, send)
        except falcon.HTTPError as error:
            await refuse(send, error.status_code, error.description or error.title)
        finally:
            receive_in_time.close()


class _ReceiveInTime:
    """The ASGI `receive` of one request, which raises HTTP 408 when the body takes too long.

    One timer per request: asyncio.timeout around each `receive` costs a tenth of a whole push.
    """

    __slots__ = ("_is_late", "_is_waiting", "_receive", "_seconds", "_task", "_timer")

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._task = asyncio.current_task()
        self._is_late = False
        self._is_waiting = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    async def __call__(self) -> Any:
        if self._is_late:
            raise self._too_late()
        self._is_waiting = True
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if not self._is_late or (self._task is not None and self._task.uncancel()):
                raise
            raise self._too_late() from None
        finally:
            self._is_waiting = False
        if not message.get("more_body"):
            self._timer.cancel()
        return message

    def close(self) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        self._is_late = True
        if self._is_waiting and self._task is not None:
            self._task.cancel()

    def _too_late(self) -> falcon.HTTPError:
        return falcon.HTTPError(408, description=f"no body within {self._seconds:g} s")


async def refuse(send: Send, status: int, desc: str) -> None:
    """Answer a transport error without an application, and close the connection."""
    await close_with(send, status, TransportError(result=status, desc=desc))


async def close_with(send: Send, status: int, reply: Reply) -> None:
    """Answer without an application, and close the connection. RuntimeError: an answer has been begun already."""
    body = msgspec.json.encode(reply)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
