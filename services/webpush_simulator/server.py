"""Simulator of a push service over HTTP/1.1: it validates, answers and stores, and decrypts as browsers do."""

import asyncio
import re
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from services.process.clock import Clock
from services.push_simulator.http1 import FAULTS, LOST_ANSWER, Http1Connection, SimulatorReply
from services.webpush_simulator.requests import (
    MAX_BODY_BYTES,
    AcceptedMessage,
    VapidTokens,
    WebPushRefusedError,
    token_of,
    validate,
)
from services.webpush_simulator.subscriptions import BrowserSubscription, UndecryptableError

RECEIVED_HISTORY = 10_000
"""Messages in memory; beyond it the oldest are dropped."""

_SCRIPTED = re.compile(r"(once-)?(?:([1-5][0-9]{2})(?:-([0-9]{3}|[0-9]{5}|[A-Za-z]+))?|([a-z_]+))\..*")


class BrowserMessage(NamedTuple):
    """A message that the browser of a subscription has got. `plaintext`: None if it cannot decrypt it."""

    token: str
    message: AcceptedMessage
    plaintext: bytes | None


class WebPushSimulator:
    """Service that simulates a push service on `port` (0: any free port); `url` is valid once it is ready.

    The beginning of a subscription's token scripts the answers to its messages: `410-103.x` is answered 410 with
    Mozilla's errno 103, `429-42901.x` with ntfy's code, `403-BadJwtToken.x` with Apple's reason, `cut.x` by the fault
    CUT; with `once-` before it only the first one. While a subscription is `offline`, its messages are stored, one for
    each topic.

    `takes_all`: it answers in the place of all push services, so it accepts what is right for subscriptions that it
    does not know; it cannot decrypt those.
    """

    name = "web-push-simulator"
    kept_bytes = MAX_BODY_BYTES + 1

    def __init__(self, clock: Clock, host: str = "127.0.0.1", port: int = 0, *, takes_all: bool = False) -> None:
        self.received: deque[BrowserMessage] = deque(maxlen=RECEIVED_HISTORY)
        self.requests = 0
        self.refused: Counter[str] = Counter()
        self.retry_after: str | None = None
        """The header Retry-After of refusals with 429 and 503."""
        self.connections: set[Http1Connection] = set()
        self._takes_all = takes_all
        self._subscriptions: dict[str, BrowserSubscription] = {}
        self._ended: set[str] = set()
        self._stored: dict[str, dict[str, AcceptedMessage]] = {}
        self._once: set[str] = set()
        self._tokens = VapidTokens()
        self._clock = clock
        self._address = (host, port)
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{self.authority}"

    @property
    def authority(self) -> str:
        """Host and port."""
        host, port = self._address
        return f"{host}:{port}"

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def run(self, ready: asyncio.Event) -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Http1Connection(self), *self._address)
        self._address = server.sockets[0].getsockname()[:2]
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in list(self.connections):
                connection.close()

    # --- the browsers' side

    def subscribe(self, token: str, application_key: str) -> BrowserSubscription:
        """Return a new subscription that is bound to an app's key (`applicationServerKey`)."""
        made = self._subscriptions[token] = BrowserSubscription.make(token, application_key)
        self._ended.discard(token)
        return made

    def endpoint(self, subscription: BrowserSubscription) -> str:
        return f"{self.url}/wpush/v2/{subscription.token}"

    def unsubscribe(self, token: str) -> None:
        """End a subscription: messages to it are answered with 410 from now on."""
        del self._subscriptions[token]
        self._ended.add(token)

    def go_offline(self, token: str) -> None:
        self._stored.setdefault(token, {})

    def come_back(self, token: str) -> None:
        """Bring the browser what was stored for it."""
        for message in self._stored.pop(token, {}).values():
            self._bring(message)

    async def wait_for(self, count: int) -> None:
        """Return once browsers have got `count` messages since the start; no time-out."""
        while len(self.received) < count:
            await self._changed.wait()

    # --- the app's side

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        """Validate a request, bring or store its message if it is accepted, and return the reply.

        `fields`: the headers by lower-case names, with `:method` and `:path`.
        """
        self.requests += 1
        headers = dict(fields)
        try:
            message = self._accepted(fields, headers, body)
            fault = self._scripted_fault(message.token)
        except WebPushRefusedError as refused:
            self.refused[str(refused)] += 1
            after = self.retry_after
            is_delay = after is not None and refused.status in (429, 503)
            return SimulatorReply(
                refused.status, [("retry-after", after)] if is_delay and after else [], refused.body()
            )
        if fault in ("", LOST_ANSWER):
            self._take(message)
        location = f"{self.url}/m/{self.requests}"
        return SimulatorReply(201, [("location", location), ("ttl", str(message.ttl_s))], fault=fault)

    def _accepted(self, fields: list[tuple[str, str]], headers: Mapping[str, str], body: bytes) -> AcceptedMessage:
        try:
            token = token_of(headers)
        except WebPushRefusedError:
            if not self._takes_all or headers.get(":method") != "POST":
                raise
            token = headers.get(":path", "")
        if token in self._ended:
            raise WebPushRefusedError(410, 103)
        subscription = self._subscriptions.get(token)
        if subscription is None and not self._takes_all:
            raise WebPushRefusedError(404, 102)
        message = validate(fields, body, token)
        origin = self.url if subscription is not None else None
        application_key = subscription.application_key if subscription is not None else None
        self._tokens.check(headers.get("authorization"), application_key, origin, self._clock.now_ms())
        return message

    def _scripted_fault(self, token: str) -> str:
        """Return the fault that the token selects, "" for none. RefusedError: the token selects a refusal."""
        found = _SCRIPTED.fullmatch(token)
        if found is None or (found[1] and token in self._once):
            return ""
        self._once.add(token)
        if found[2] is None:
            return found[4] if found[4] in FAULTS else ""
        kind = found[3] or ""
        if kind.isdigit():
            raise WebPushRefusedError(int(found[2]), int(kind))
        raise WebPushRefusedError(int(found[2]), reason=kind)

    def _take(self, message: AcceptedMessage) -> None:
        stored = self._stored.get(message.token)
        if stored is None:
            self._bring(message)
        elif message.ttl_s:
            stored[message.topic or f"{len(stored)}."] = message

    def _bring(self, message: AcceptedMessage) -> None:
        subscription = self._subscriptions.get(message.token)
        if subscription is None and not self._takes_all:
            return
        try:
            plaintext = subscription.decrypt(message.body) if subscription is not None and message.body else None
        except UndecryptableError:
            plaintext = None
        self.received.append(BrowserMessage(message.token, message, plaintext))
        self._changed.set()
        self._changed = asyncio.Event()
