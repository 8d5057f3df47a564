"""Apple's push service as Apple documents it, on this machine: what is sent to it is checked, answered and kept.

It speaks HTTP/2 over TLS with a certificate of its own, so that the sender is the one that talks to Apple.
"""

import asyncio
import contextlib
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from services.apns_simulator.certificate import SelfSigned
from services.apns_simulator.connection import Connection, Reply
from services.apns_simulator.keys import AppleKeys
from services.apns_simulator.rules import Received, RefusedError, Request, checked, is_id
from services.apns_simulator.script import Fault, scripted
from services.runtime.process.clock import Clock

_ANSWERED = (None, Fault.GOODBYE, Fault.ONE_STREAM)

WATCHED = 1_000
"""How many accepted pushes wait for one watcher, the newest."""

KEPT = 10_000
"""How many of the accepted pushes are kept, the newest."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the stand-in behaves. A connection has `first_streams` until a push of it had a good provider token,
    `streams` after that; `window`: bytes that one stream may send unasked; `goodbye_every`: a connection's end comes
    after so many pushes (0: never); `topics`: those that exist, all when empty."""

    streams: int = 1000
    first_streams: int = 1
    latency_ms: int = 0
    window: int = 65_535
    goodbye_every: int = 0
    topics: frozenset[str] = frozenset()


class ApnsSimulator:
    """A service on `port` (0: any free one); `url` is known once it is ready. `on_push` is told of every request with
    the status, empty where it is not answered, and the reason or oddity."""

    name = "apns-stand-in"

    def __init__(
        self,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        behaviour: Behaviour | None = None,
        certificate: SelfSigned | None = None,
    ) -> None:
        self.received: deque[Received] = deque(maxlen=KEPT)
        self.refused: Counter[str] = Counter()
        self.keys = AppleKeys()
        self.behaviour = behaviour or Behaviour()
        self.on_push: Callable[[Request, str, str], None] = lambda request, status, reason: None
        self._accepted = 0
        self._clock = clock
        self._certificate = certificate or SelfSigned.make(host)
        self._place = (host, port)
        self.connections: set[Connection] = set()
        self._asked_once: dict[str, None] = {}
        self._news = asyncio.Event()
        self._watchers: dict[str, set[asyncio.Queue[Received]]] = {}

    @property
    def url(self) -> str:
        host, port = self._place
        return f"https://{host}:{port}"

    @property
    def authority(self) -> str:
        """PEM text of the certificate that a sender has to trust."""
        return self._certificate.certificate_pem

    async def run(self, ready: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        context = self._certificate.server_context(["h2"])
        server = await loop.create_server(lambda: Connection(self, self.connections), *self._place, ssl=context)
        self._place = server.sockets[0].getsockname()[:2]
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in list(self.connections):
                connection.end()

    @contextlib.contextmanager
    def watching(self, tokens: Iterable[str]) -> Iterator[asyncio.Queue[Received]]:
        """What is accepted for these tokens from now on, in order; letters' case does not matter."""
        queue: asyncio.Queue[Received] = asyncio.Queue(WATCHED)
        watched = {token.lower() for token in tokens}
        for token in watched:
            self._watchers.setdefault(token, set()).add(queue)
        try:
            yield queue
        finally:
            for token in watched:
                self._watchers[token].discard(queue)
                if not self._watchers[token]:
                    del self._watchers[token]

    async def wait_for(self, count: int) -> None:
        """Return once `count` pushes were accepted in all; the caller sets the deadline."""
        while self._accepted < count:
            await self._news.wait()

    def take(self, request: Request) -> Reply:
        """The answer to a request, or what to do in its place."""
        apns_id = _id(request.header("apns-id"))
        proven = False
        try:
            self._check_provider(request)
            proven = True
            received = checked(request, self.behaviour.topics)
            fault = self._asked(received.token)
        except RefusedError as refused:
            self.refused[refused.reason] += 1
            self.on_push(request, str(refused.status), refused.reason)
            return _refusal(refused, apns_id, proven)
        if fault in _ANSWERED:
            self._accept(received)
        self.on_push(request, "200" if fault in _ANSWERED else "", fault.name if fault else "")
        return Reply([(":status", "200"), ("apns-id", apns_id)], b"", fault, proven)

    def _check_provider(self, request: Request) -> None:
        if refusal := self.keys.refusal(request.header("authorization"), self._clock.now_ms()):
            raise RefusedError(*refusal)

    def _asked(self, token: str) -> Fault | None:
        """What the token asks for. RefusedError: a refusal."""
        asked = scripted(token)
        if asked is None or (asked.once and token in self._asked_once):
            return None
        if asked.once:
            self._asked_once[token] = None
        if asked.status:
            timestamp_ms = self._clock.now_ms() if asked.status == 410 and asked.reason else None
            raise RefusedError(asked.status, asked.reason, timestamp_ms)
        return asked.fault

    def _accept(self, received: Received) -> None:
        self._accepted += 1
        self.received.append(received)
        for queue in self._watchers.get(received.token.lower(), ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(received)
        self._news.set()
        self._news = asyncio.Event()


def _id(given: str | None) -> str:
    return given if given and is_id(given) else str(uuid.uuid4())


def _refusal(refused: RefusedError, apns_id: str, proven: bool) -> Reply:
    body: dict[str, object] = {"reason": refused.reason} if refused.reason else {}
    if refused.timestamp_ms is not None:
        body["timestamp"] = refused.timestamp_ms
    encoded = msgspec.json.encode(body) if body else b""
    return Reply([(":status", str(refused.status)), ("apns-id", apns_id)], encoded, None, proven)
