"""Simulator of Apple's push service over TLS and HTTP/2: validates, answers and stores pushes as Apple documents."""

import asyncio
import contextlib
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from protos.delivery.v1.virtual_pb2 import WatchRequest, WatchResponse
from protos.delivery.v1.virtual_pb2_grpc import VirtualPhonesServiceServicer
from services.apns_simulator.keys import AppleKeys
from services.apns_simulator.requests import ApnsRefusedError, ReceivedPush, is_uuid, validate
from services.apns_simulator.script import Behaviour, scripted_answer
from services.errors import ConflictError, InputError
from services.net.rpc.server import Context
from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.connection import ACCEPTING_FAULTS, Fault, HttpRequest, ScriptedReply
from services.push_simulator.server import SimulatedService

WATCHER_QUEUE_SIZE = 1_000
"""Unread pushes per watcher; beyond it the oldest are dropped."""

RECEIVED_HISTORY = 10_000
"""Accepted pushes in memory; beyond it the oldest are dropped."""


class ApnsSimulator(SimulatedService):
    """Service that simulates Apple's push service on `port` (0: any free port); `url` is valid once it is ready.

    `on_push` is called for every request with the status as text ("": no response) and the reason or the fault's name.
    """

    name = "apns-simulator"

    def __init__(
        self,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        behaviour: Behaviour | None = None,
        certificate: SelfSigned | None = None,
    ) -> None:
        super().__init__(host, port, certificate)
        self.received: deque[ReceivedPush] = deque(maxlen=RECEIVED_HISTORY)
        self.refused: Counter[str] = Counter()
        self.keys = AppleKeys()
        self.behaviour: Behaviour = behaviour or Behaviour()
        self.on_push: Callable[[HttpRequest, str, str], None] = lambda request, status, reason: None
        self._accepted_count = 0
        self._clock = clock
        self._once_tokens: set[str] = set()
        self._accepted_event = asyncio.Event()
        self._watchers: dict[str, set[asyncio.Queue[ReceivedPush]]] = {}

    @contextlib.contextmanager
    def watching(self, tokens: Iterable[str]) -> Iterator[asyncio.Queue[ReceivedPush]]:
        """Yield a queue of the pushes accepted for these tokens from now on; tokens are compared case-insensitively."""
        queue: asyncio.Queue[ReceivedPush] = asyncio.Queue(WATCHER_QUEUE_SIZE)
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
        """Return once `count` pushes were accepted since the start; no time-out."""
        while self._accepted_count < count:
            await self._accepted_event.wait()

    def reply_to(self, request: HttpRequest) -> ScriptedReply:
        """Validate a request, store it if it is accepted, and return the reply."""
        apns_id = _apns_id(request.header("apns-id"))
        authenticated = False
        try:
            self._authenticate(request)
            authenticated = True
            push = validate(request, self.behaviour.topics)
            fault = self._scripted_fault(push.token)
        except ApnsRefusedError as refused:
            self.refused[refused.reason] += 1
            self.on_push(request, str(refused.status), refused.reason)
            return _refusal(refused, apns_id, authenticated)
        if fault in ACCEPTING_FAULTS:
            self._accept(push)
        self.on_push(request, "200" if fault in ACCEPTING_FAULTS else "", fault.name if fault else "")
        return ScriptedReply([(":status", "200"), ("apns-id", apns_id)], b"", fault, authenticated)

    def _authenticate(self, request: HttpRequest) -> None:
        if refusal := self.keys.refusal(request.header("authorization"), self._clock.now_ms()):
            raise ApnsRefusedError(*refusal)

    def _scripted_fault(self, token: str) -> Fault | None:
        """Return the fault that the token selects, if any. RefusedError: the token selects a refusal."""
        answer = scripted_answer(token)
        if answer is None or (answer.once and token in self._once_tokens):
            return None
        if answer.once:
            self._once_tokens.add(token)
        if answer.status:
            timestamp_ms = self._clock.now_ms() if answer.status == 410 and answer.reason else None
            raise ApnsRefusedError(answer.status, answer.reason, timestamp_ms)
        return answer.fault

    def _accept(self, push: ReceivedPush) -> None:
        self._accepted_count += 1
        self.received.append(push)
        for queue in self._watchers.get(push.token.lower(), ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(push)
        self._accepted_event.set()
        self._accepted_event = asyncio.Event()


def _apns_id(given: str | None) -> str:
    return given if given and is_uuid(given) else str(uuid.uuid4())


def _refusal(refused: ApnsRefusedError, apns_id: str, authenticated: bool) -> ScriptedReply:
    body: dict[str, object] = {"reason": refused.reason} if refused.reason else {}
    if refused.timestamp_ms is not None:
        body["timestamp"] = refused.timestamp_ms
    encoded = msgspec.json.encode(body) if body else b""
    return ScriptedReply([(":status", str(refused.status)), ("apns-id", apns_id)], encoded, None, authenticated)


# gRPC service that streams the pushes accepted by the simulator to virtual iOS devices.

MAX_WATCHED = 10_000
"""Tokens per Watch request."""


class AcceptedPushes(Protocol):
    """A source of accepted pushes, which the simulator implements."""

    def watching(self, tokens: Iterable[str]) -> "AbstractContextManager[asyncio.Queue[ReceivedPush]]": ...


class VirtualPhonesServicer(VirtualPhonesServiceServicer):
    """Streams the pushes that the simulator accepts for some device tokens.

    `pushes` is None where pushes go to Apple; Watch is then a ConflictError. `check` raises UnavailableError where
    another process answers.
    """

    def __init__(self, pushes: AcceptedPushes | None, check: Callable[[], None] = lambda: None) -> None:
        self._pushes = pushes
        self._check = check

    async def Watch(self, requests: AsyncIterator[WatchRequest], context: Context) -> AsyncIterator[WatchResponse]:
        request = await anext(requests, None)
        if self._pushes is None:
            raise ConflictError("pushes go where CARILLON_APNS_URL says, so virtual iOS devices get none; unset it")
        if request is None or not 1 <= len(request.tokens) <= MAX_WATCHED:
            raise InputError(f"tokens must be a list of 1 to {MAX_WATCHED}")
        self._check()
        with self._pushes.watching(request.tokens) as queue:
            yield WatchResponse()
            while True:
                push = await queue.get()
                yield WatchResponse(token=push.token, headers=push.headers, payload=push.payload)
