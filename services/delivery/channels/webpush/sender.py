"""Sends requests to push services by HTTP/1.1, which all of them speak, over connections that apps take turns with.

`PushServices` ─▶ `_Origin`, one for each scheme, host and port ─▶ `HttpClientConnection`, for one request at a time
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from services.delivery.channels import PendingRequest
from services.delivery.channels.health import UnreachableServices
from services.delivery.channels.webpush.request import WebPushRequest
from services.delivery.channels.webpush.responses import (
    ENDPOINT_REFUSED,
    LOCAL,
    NO_CONNECTION,
    UNKNOWN,
    WebPushAnswer,
    label,
    parse_answer,
)
from services.delivery.channels.webpush.vapid import VapidHeaders
from services.domain.endpoint_connections import Connector
from services.domain.push_endpoints import AllowedHosts, Endpoint, EndpointRefusedError, parse_endpoint
from services.errors import UnavailableError
from services.net.fairness import FairQueue
from services.net.http.client import HttpAnswer, HttpClientConnection, IdleConnections, NoAnswerError
from services.process import background
from services.process.clock import Clock
from services.process.metrics import CHANNEL_ANSWERS
from services.process.turns import SpacedSlices

CONNECTIONS = 32
"""Connections to one origin, each with one request at a time."""

IDLE_S = 20.0
"""Time without a request after which a connection is closed; services keep theirs for longer."""

_AT_ONCE = 2
"""Requests that are encrypted and written before other tasks run: about half a millisecond."""

_TURNS_A_REQUEST = 4
"""Turns of the event loop that other work has for each request: they cost a request some 4 us, and a frame to a
connected device waits for three slices, not for twenty.
"""

PendingWebPush: TypeAlias = PendingRequest[WebPushRequest, WebPushAnswer]


class _Message(NamedTuple):
    """A request of an app, which waits for a connection or for an answer; its fields are those of `submit`."""

    pending: PendingWebPush
    app: str
    endpoint: Endpoint
    hosts: AllowedHosts
    written: Callable[[Endpoint], bytes]


class _Origin:
    """The connections to one origin, and until when its service wants no requests, of all apps or of one.

    Apps are named by their public keys.
    """

    def __init__(self) -> None:
        self.waiting: FairQueue[str, _Message] = FairQueue()
        self.in_flight = 0
        """Requests that have a connection, or wait until theirs is open."""

        self._delayed_until_ms = 0
        self._apps_delayed_until_ms: dict[str, int] = {}
        self._latest_delayed: dict[str, tuple[str, int]] = {}
        self.idle = IdleConnections()

    def is_unused(self, now_ms: int) -> bool:
        """Whether there is nothing to be kept of it."""
        self._apps_delayed_until_ms = {app: at for app, at in self._apps_delayed_until_ms.items() if at > now_ms}
        self._latest_delayed = {app: latest for app, latest in self._latest_delayed.items() if latest[1] > now_ms}
        is_delayed = self._latest_delayed or self._apps_delayed_until_ms or self._delayed_until_ms > now_ms
        return not (self.waiting or self.in_flight or self.idle or is_delayed)

    def delayed_until_ms(self, app: str) -> int:
        """Return until when the service wants no requests of the app."""
        return max(self._delayed_until_ms, self._apps_delayed_until_ms.get(app, 0))

    def note_delay(self, app: str, endpoint: str, answer: WebPushAnswer, now_ms: int) -> None:
        """Note an answer's Retry-After.

        503: the service is overloaded and wants no requests. 429 is about one subscription (RFC 8030, section 8.4),
        which `react` delays; if a second one gets it meanwhile, the app sends too much.
        """
        until_ms = now_ms + answer.retry_after_ms
        if answer.retry_after_ms and answer.status == 503:
            self._delayed_until_ms = until_ms
        elif answer.retry_after_ms and answer.status == 429:
            latest, latest_until_ms = self._latest_delayed.get(app, (endpoint, 0))
            if latest != endpoint and latest_until_ms > now_ms:
                self._apps_delayed_until_ms[app] = until_ms
            self._latest_delayed[app] = endpoint, until_ms


class PushServices:
    """Posts to endpoints, with no task for each request. `close` ends all without an answer, and calls `on_close`."""

    def __init__(self, connector: Connector, clock: Clock, on_close: Callable[[], None] = lambda: None) -> None:
        self._connector = connector
        self._clock = clock
        self._origins: dict[str, _Origin] = {}
        self._sendable: dict[_Origin, None] = {}
        self._sending = SpacedSlices(self._send_some)
        self._connecting: set[asyncio.Task[None]] = set()
        self._busy: set[HttpClientConnection] = set()
        self._closed = False
        self._sweep: asyncio.TimerHandle | None = None
        self._on_close = on_close
        self._unreachable = UnreachableServices("webpush", clock)

    def submit(
        self, pending: PendingWebPush, app: str, hosts: AllowedHosts, written: Callable[[Endpoint], bytes]
    ) -> None:
        """Send the request as soon as its origin has a free connection, for which apps wait in turns.

        `app`: the public key of the request's app. `written`: the request's bytes, made right before it is sent.
        """
        try:
            endpoint = parse_endpoint(pending.request.subscription.endpoint)
            hosts.check(endpoint)
        except EndpointRefusedError:
            asyncio.get_running_loop().call_soon(self._answer, pending, WebPushAnswer(LOCAL, ENDPOINT_REFUSED))
            return
        if (origin := self._origins.get(endpoint.origin)) is None:
            origin = self._origins[endpoint.origin] = _Origin()
            self._sweep_later()
        origin.waiting.put(app, _Message(pending, app, endpoint, hosts, written))
        self._schedule(origin)

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in self._busy:
            connection.close()
        for origin in self._origins.values():
            origin.idle.close()
        self._unreachable.clear()
        self._on_close()

    # --- from the queues to the connections

    def _schedule(self, origin: _Origin) -> None:
        """Send what waits for the origin in the next turns of the event loop, as far as it has free connections."""
        self._sendable[origin] = None
        self._sending.request()

    def _send_some(self) -> int:
        """Send some requests, with origins in turns; return how many turns of the event loop others have then."""
        sent = 0
        for _ in range(_AT_ONCE):
            if self._closed or (origin := next(iter(self._sendable), None)) is None:
                break
            del self._sendable[origin]
            if origin.in_flight < CONNECTIONS and (taken := origin.waiting.take()) is not None:
                self._send(origin, taken[1])
                self._schedule(origin)
                sent += 1
        return _TURNS_A_REQUEST * sent

    def _send(self, origin: _Origin, message: _Message) -> None:
        now_ms = self._clock.now_ms()
        if not message.pending.is_wanted():
            message.pending.skipped()
        elif now_ms < (until_ms := origin.delayed_until_ms(message.app)):
            message.pending.answered(WebPushAnswer(503, "HTTP 503", until_ms - now_ms))
        else:
            origin.in_flight += 1
            if (connection := origin.idle.take()) is not None:
                self._write(origin, message, connection)
            else:
                task = background.start("connection to a push service", self._connect(origin, message))
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)

    async def _connect(self, origin: _Origin, message: _Message) -> None:
        """Send the request over a new connection."""
        endpoint, hosts = message.endpoint, message.hosts
        try:
            _, connection = await self._connector.connect(endpoint, hosts, HttpClientConnection)
        except EndpointRefusedError:
            self._conclude(origin, message, WebPushAnswer(LOCAL, ENDPOINT_REFUSED))
        except UnavailableError:
            if service := hosts.service_of(endpoint):  # devices choose the others, which may never have existed
                self._unreachable.failed(service)
            self._conclude(origin, message, WebPushAnswer(LOCAL, NO_CONNECTION))
        else:
            self._write(origin, message, connection)

    def _write(self, origin: _Origin, message: _Message, connection: HttpClientConnection) -> None:
        if self._unreachable and (service := message.hosts.service_of(message.endpoint)):
            self._unreachable.reached(service)
        self._busy.add(connection)
        connection.send(message.written(message.endpoint), partial(self._answered, origin, message, connection))

    # --- answers

    def _answered(
        self, origin: _Origin, message: _Message, connection: HttpClientConnection, found: HttpAnswer | NoAnswerError
    ) -> None:
        if self._closed:
            return
        self._busy.discard(connection)
        if isinstance(found, NoAnswerError):
            connection.close()
            answer = WebPushAnswer(UNKNOWN, str(found))
        else:
            origin.idle.put(connection, asyncio.get_running_loop().time())
            answer = parse_answer(*found, self._clock.now_ms())
        self._conclude(origin, message, answer)

    def _conclude(self, origin: _Origin, message: _Message, answer: WebPushAnswer) -> None:
        """Let the origin send the next request, and answer this one."""
        origin.in_flight -= 1
        origin.note_delay(message.app, message.pending.request.subscription.endpoint, answer, self._clock.now_ms())
        self._schedule(origin)
        self._answer(message.pending, answer)

    def _answer(self, pending: PendingWebPush, answer: WebPushAnswer) -> None:
        CHANNEL_ANSWERS.labels("webpush", label(answer)).inc()
        pending.answered(answer)

    def _sweep_later(self) -> None:
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        now_ms, before_s = self._clock.now_ms(), asyncio.get_running_loop().time() - IDLE_S
        for name, origin in list(self._origins.items()):
            origin.idle.close(before_s)
            if origin.is_unused(now_ms):
                del self._origins[name]
        self._unreachable.forget_old()
        if self._origins or self._unreachable:
            self._sweep_later()


class WebPushSender:
    """Sends requests with one app's credentials. `is_small`: with the shorter body. `is_renewed`: with a new token."""

    def __init__(
        self,
        services: PushServices,
        vapid: VapidHeaders,
        hosts: AllowedHosts,
        clock: Clock,
        *,
        is_small: bool = False,
        is_renewed: bool = False,
    ) -> None:
        self._services = services
        self._vapid = vapid
        self._hosts = hosts
        self._clock = clock
        self._is_small = is_small
        self._is_renewed = is_renewed

    def submit(self, pending: PendingWebPush, /) -> None:
        written = partial(self._written, pending.request)
        self._services.submit(pending, self._vapid.public_key, self._hosts, written)

    def _written(self, request: WebPushRequest, endpoint: Endpoint) -> bytes:
        """Return the request as it is written to the connection."""
        body = request.body(is_small=self._is_small)
        authorization = self._vapid.header(endpoint.origin, is_renewed=self._is_renewed)
        headers = [
            ("host", endpoint.authority),
            ("content-length", str(len(body))),
            *request.headers(authorization, self._clock.now_ms()),
        ]
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        return f"POST {endpoint.target} HTTP/1.1\r\n{lines}\r\n".encode() + body
