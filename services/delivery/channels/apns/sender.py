"""Sends pushes to Apple's services: one sender for each endpoint and signing key, shared by apps."""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from protos.registry.v1.apps_pb2 import App
from services.delivery.channels.apns.connection import ApnsConnection
from services.delivery.channels.apns.provider_tokens import ProviderToken
from services.delivery.channels.apns.request import ApnsResult, PendingPush, Timeouts, header_block, local_refusal
from services.delivery.channels.apns.responses import ResponseAction, handling_of, label
from services.delivery.limits import CircuitBreaker
from services.domain.apns_credentials import ApnsCredentials, Environment
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import APNS_ANSWERS

CONNECTIONS = 2
"""Connections per endpoint and key. More add little: Apple allows up to a thousand concurrent requests on each."""

_FIRST_BACKOFF_MS = 1_000
_MAX_BACKOFF_MS = 900_000


class ConnectionSlot:
    """Holds at most one connection, opened on demand and reopened after a failure and its back-off."""

    def __init__(self) -> None:
        self.circuit = CircuitBreaker(_FIRST_BACKOFF_MS, _MAX_BACKOFF_MS)
        self.connection: ApnsConnection | None = None
        self.connecting: asyncio.Task[None] | None = None

    @property
    def is_warming_up(self) -> bool:
        """Whether the connection accepts one push at a time because none has been accepted on it yet."""
        connection = self.connection
        return connection is not None and self.circuit.is_closed and not (connection.is_proven or connection.draining)

    def capacity(self, now_ms: int) -> int:
        """Number of pushes that may be sent now."""
        if self.connection is None or self.circuit.is_open(now_ms):
            return 0
        free = self.connection.capacity
        return free if self.circuit.is_closed else min(free, 1 - self.connection.in_flight)


class ApnsSender:
    """Sends pushes to one endpoint with one key; the caller bounds the number that it submits.

    `authority`: PEM text of trusted certificates, None for the system's.
    """

    def __init__(
        self,
        url: str,
        provider_token: ProviderToken,
        clock: Clock,
        authority: str | None = None,
        timeouts: Timeouts | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 443
        self._authority = parts.netloc
        self._provider_token = provider_token
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._tls = ssl.create_default_context(cadata=authority)
        self._tls.set_alpn_protocols(["h2"])
        self._slots = [ConnectionSlot() for _ in range(connections)]
        self._connections: set[ApnsConnection] = set()
        self._queue: deque[PendingPush] = deque()
        self._wake_up: asyncio.Task[None] | None = None
        self._is_scheduled = False
        self._closed = False

    def submit(self, pending: PendingPush, /) -> None:
        """Send the push as soon as a connection has capacity; the push is called back once with the result."""
        self._queue.append(pending)
        self._schedule()

    async def close(self) -> None:
        """Close the connections. In-flight pushes get the result UNKNOWN; queued ones get none."""
        self._closed = True
        tasks = [slot.connecting for slot in self._slots if slot.connecting]
        if self._wake_up:
            tasks.append(self._wake_up)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()

    # --- from the queue to the connections

    def _schedule(self) -> None:
        """Send queued pushes as the capacity allows, once in the next turn of the event loop."""
        if not self._is_scheduled and not self._closed:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_queued)

    def _send_queued(self) -> None:
        self._is_scheduled = False
        if self._closed:
            return
        now_ms = self._clock.now_ms()
        for slot in self._slots:
            if slot.connection is not None and slot.connection.is_closed:
                slot.connection = None
            while self._queue and slot.connection is not None and slot.capacity(now_ms) > 0:
                self._send(slot.connection, self._queue.popleft())
        if self._queue:
            self._connect_next(now_ms)

    def _send(self, connection: ApnsConnection, pending: PendingPush) -> None:
        if not pending.is_wanted():
            pending.skipped()
        elif refusal := local_refusal(pending.request):
            pending.answered(refusal)
        else:
            token = self._provider_token.text()
            connection.send(pending, header_block(pending.request, self._authority, token), token)

    def _connect_next(self, now_ms: int) -> None:
        """Open the next connection, one at a time; if all slots back off, wait for the first back-off to end."""
        if any(slot.connecting or slot.is_warming_up for slot in self._slots):
            return
        for slot in self._slots:
            if (slot.connection is None or slot.connection.draining) and not slot.circuit.is_open(now_ms):
                slot.connecting = background.start("connection to Apple", self._connect(slot))
                return
        open_until = [slot.circuit.open_until_ms for slot in self._slots if slot.circuit.is_open(now_ms)]
        if open_until and self._wake_up is None:
            self._wake_up = background.start("back-off of APNs", self._wake_up_at(min(open_until)))

    async def _connect(self, slot: ConnectionSlot) -> None:
        connection = ApnsConnection(
            partial(self._on_result, slot), self._requeue, partial(self._on_change, slot), self._timeouts
        )
        try:
            await connection.open(self._host, self._port, self._tls)
            self._connections.add(connection)
            slot.connection = connection
        except OSError as error:
            slot.circuit.trip(self._clock.now_ms())
            logger.warning("no connection to the push service", host=self._host, error=_text(error))
        finally:
            slot.connecting = None
            self._schedule()

    async def _wake_up_at(self, time_ms: int) -> None:
        await self._clock.sleep_until(time_ms)
        self._wake_up = None
        self._schedule()

    # --- callbacks of the connections

    def _on_result(
        self,
        slot: ConnectionSlot,
        connection: ApnsConnection,
        pending: PendingPush,
        provider_token: str,
        result: ApnsResult,
    ) -> None:
        APNS_ANSWERS.labels(label(result)).inc()
        self._maintain(slot, connection, provider_token, handling_of(result).action)
        pending.answered(result)

    def _maintain(
        self, slot: ConnectionSlot, connection: ApnsConnection, provider_token: str, action: ResponseAction
    ) -> None:
        """Apply what a response means for the connection and for the provider token."""
        match action:
            case ResponseAction.RENEW_TOKEN:
                if not self._provider_token.renew(provider_token):
                    logger.error("Apple calls a new provider token expired: is this machine's clock right?")
            case ResponseAction.HOLD_TOKEN:
                logger.warning("Apple saw too many provider tokens; the one before is used", host=self._host)
                self._provider_token.hold(provider_token)
                slot.circuit.trip(self._clock.now_ms())
                connection.drain()
            case ResponseAction.BACK_OFF:
                if slot.circuit.trip(self._clock.now_ms()):
                    logger.warning("the push service has a fault; its connection backs off", host=self._host)
            case ResponseAction.RECONNECT:
                connection.drain()
            case ResponseAction.REPEAT | ResponseAction.STOP_APP | ResponseAction.DELAY_DEVICE:
                pass
            case _:
                slot.circuit.close()

    def _requeue(self, pending: PendingPush) -> None:
        self._queue.appendleft(pending)
        self._schedule()

    def _on_change(self, slot: ConnectionSlot, connection: ApnsConnection) -> None:
        """Back off if the connection closed before a push was accepted on it, unless it was closed for being idle."""
        if connection.is_closed:
            self._connections.discard(connection)
            if not connection.is_proven and not connection.is_idle:
                slot.circuit.trip(self._clock.now_ms())
        self._schedule()


def _text(error: OSError) -> str:
    return str(error) or type(error).__name__


# The process's senders: one for each Apple endpoint and signing key, shared by all apps with that key.


class CredentialsSource(Protocol):
    def __call__(self, app: App) -> ApnsCredentials | None:
        """Return the app's credentials, or None if it has no usable key, so that nothing can be sent for it."""
        ...


@dataclass(frozen=True, slots=True)
class ApnsEndpoint:
    """URL of one of Apple's services. `authority`: PEM text of trusted certificates; None for the system's."""

    url: str
    authority: str | None = None


APPLE = {
    Environment.PRODUCTION: ApnsEndpoint("https://api.push.apple.com"),
    Environment.SANDBOX: ApnsEndpoint("https://api.sandbox.push.apple.com"),
}


class SenderPool:
    """Makes and shares the senders. `endpoints`: production and the sandbox."""

    def __init__(
        self, endpoints: Mapping[Environment, ApnsEndpoint], clock: Clock, timeouts: Timeouts | None = None
    ) -> None:
        self._endpoints = endpoints
        self._clock = clock
        self._timeouts = timeouts
        self._provider_tokens: dict[tuple[str, str, str], ProviderToken] = {}
        self._senders: dict[tuple[str, str, str, str], ApnsSender] = {}

    def get(self, credentials: ApnsCredentials, sandbox: bool = False) -> ApnsSender:
        """The sender for an app; `sandbox`: to the sandbox, if the app uses both. InvalidKeyError: bad key."""
        key = (credentials.team_id, credentials.key_id, credentials.key_pem)
        to_sandbox = sandbox or credentials.environment is Environment.SANDBOX
        endpoint = self._endpoints[Environment.SANDBOX if to_sandbox else Environment.PRODUCTION]
        sender = self._senders.get((endpoint.url, *key))
        if sender is None:
            provider_token = self._provider_tokens.get(key) or ProviderToken(credentials, self._clock)
            self._provider_tokens[key] = provider_token
            sender = ApnsSender(endpoint.url, provider_token, self._clock, endpoint.authority, self._timeouts)
            self._senders[endpoint.url, *key] = sender
        return sender

    async def close(self) -> None:
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))
