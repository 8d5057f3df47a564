"""Sends requests to push services by HTTP/1.1, which all of them speak, over connections that apps take turns with.

`PushServices` ─▶ `_Origin`, one for each scheme, host and port ─▶ `HttpClientConnection`, for one request at a time
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

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
from services.net.fairness import FairSemaphore
from services.net.http.client import HttpClientConnection, IdleConnections, NoAnswerError
from services.process import background
from services.process.clock import Clock
from services.process.metrics import CHANNEL_ANSWERS

CONNECTIONS = 32
"""Connections to one origin, each with one request at a time."""

IDLE_S = 20.0
"""Time without a request after which a connection is closed; services keep theirs for longer."""

PendingWebPush: TypeAlias = PendingRequest[WebPushRequest, WebPushAnswer]


class _Origin:
    """The connections to one origin, and until when its service wants no requests, of all apps or of one.

    Apps are named by their public keys.
    """

    def __init__(self) -> None:
        self.slots = FairSemaphore("Web Push requests", CONNECTIONS, max_waiting=math.inf)
        self.users = 0
        self._delayed_until_ms = 0
        self._apps_delayed_until_ms: dict[str, int] = {}
        self._latest_delayed: dict[str, tuple[str, int]] = {}
        self.idle = IdleConnections()

    def is_unused(self, now_ms: int) -> bool:
        """Whether there is nothing to be kept of it."""
        self._apps_delayed_until_ms = {app: at for app, at in self._apps_delayed_until_ms.items() if at > now_ms}
        self._latest_delayed = {app: latest for app, latest in self._latest_delayed.items() if latest[1] > now_ms}
        is_delayed = self._latest_delayed or self._apps_delayed_until_ms or self._delayed_until_ms > now_ms
        return not (self.users or self.idle or is_delayed)

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
    """Posts to endpoints. `close` ends all requests without an answer, and calls `on_close`."""

    def __init__(self, connector: Connector, clock: Clock, on_close: Callable[[], None] = lambda: None) -> None:
        self._connector = connector
        self._clock = clock
        self._origins: dict[str, _Origin] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._on_close = on_close
        self._unreachable = UnreachableServices("webpush", clock)

    def submit(
        self, pending: PendingWebPush, app: str, hosts: AllowedHosts, written: Callable[[Endpoint], bytes]
    ) -> None:
        """Send the request as soon as its origin has a free connection, for which apps wait in turns.

        `app`: the public key of the request's app. `written`: the request's bytes, made right before it is sent.
        """
        task = background.start("Web Push request", self._send(pending, app, hosts, written))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._sweep is not None:
            self._sweep.cancel()
        for origin in self._origins.values():
            origin.idle.close()
        self._unreachable.clear()
        self._on_close()

    async def _send(
        self, pending: PendingWebPush, app: str, hosts: AllowedHosts, written: Callable[[Endpoint], bytes]
    ) -> None:
        try:
            endpoint = parse_endpoint(pending.request.subscription.endpoint)
            hosts.check(endpoint)
        except EndpointRefusedError:
            answer = WebPushAnswer(LOCAL, ENDPOINT_REFUSED)
            CHANNEL_ANSWERS.labels("webpush", label(answer)).inc()
            pending.answered(answer)
            return
        if (origin := self._origins.get(endpoint.origin)) is None:
            origin = self._origins[endpoint.origin] = _Origin()
        origin.users += 1
        try:
            async with origin.slots.slot(app):
                await self._send_now(pending, app, endpoint, origin, hosts, written)
        finally:
            origin.users -= 1
            self._sweep_later()

    async def _send_now(
        self,
        pending: PendingWebPush,
        app: str,
        endpoint: Endpoint,
        origin: _Origin,
        hosts: AllowedHosts,
        written: Callable[[Endpoint], bytes],
    ) -> None:
        now_ms = self._clock.now_ms()
        if not pending.is_wanted():
            pending.skipped()
        elif now_ms < (until_ms := origin.delayed_until_ms(app)):
            pending.answered(WebPushAnswer(503, "HTTP 503", until_ms - now_ms))
        else:
            answer = await self._post(pending.request, endpoint, origin, hosts, written)
            origin.note_delay(app, pending.request.subscription.endpoint, answer, self._clock.now_ms())
            CHANNEL_ANSWERS.labels("webpush", label(answer)).inc()
            pending.answered(answer)

    async def _post(
        self,
        request: WebPushRequest,
        endpoint: Endpoint,
        origin: _Origin,
        hosts: AllowedHosts,
        written: Callable[[Endpoint], bytes],
    ) -> WebPushAnswer:
        try:
            connection = origin.idle.take() or (await self._connector.connect(endpoint, hosts, HttpClientConnection))[1]
        except EndpointRefusedError:
            return WebPushAnswer(LOCAL, ENDPOINT_REFUSED)
        except UnavailableError:
            if service := hosts.service_of(endpoint):  # devices choose the others, which may never have existed
                self._unreachable.failed(service)
            return WebPushAnswer(LOCAL, NO_CONNECTION)
        if self._unreachable and (service := hosts.service_of(endpoint)):
            self._unreachable.reached(service)
        try:
            status, headers, content = await connection.post(written(endpoint))
        except NoAnswerError as error:
            connection.close()
            return WebPushAnswer(UNKNOWN, str(error))
        except asyncio.CancelledError:
            connection.close()
            raise
        origin.idle.put(connection, asyncio.get_running_loop().time())
        return parse_answer(status, headers, content, self._clock.now_ms())

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
        return b"".join([f"POST {endpoint.target} HTTP/1.1\r\n".encode(), *_lines(headers), b"\r\n", body])


def _lines(headers: Sequence[tuple[str, str]]) -> list[bytes]:
    return [f"{name}: {value}\r\n".encode() for name, value in headers]
