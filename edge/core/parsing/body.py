"""Reads request bodies, bounded in size and time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import falcon
import msgspec
from falcon.asgi import Request

from edge.core.answers import MEDIA_TYPE, Reply, TransportError
from edge.core.body_budget import UnverifiedBody
from services.runtime.errors import InputError

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
