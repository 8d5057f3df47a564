"""gRPC channels to other roles over sockets, whose connections are replaced while calls are in flight."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import grpc
import grpc.aio

from services.net.rpc.caller import SHARD_KEY, ShardOfRole
from services.net.rpc.calls import DEADLINE_S, GRPC_LIMITS, channel_error, servicer_error
from services.net.rpc.tls import RenewedFiles, Tls
from services.process import background

# Connections that replace each other: each counts its calls in flight, and is closed after the last of them.


class PeerConnection:
    """A channel for generated stubs, the number of its calls in flight, and its methods, made once each."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls = 0
        self._methods: dict[str, Callable[..., Any]] = {}

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._method(self.channel.unary_unary, method, *arguments, **options)

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._method(self.channel.stream_stream, method, *arguments, **options)

    def _method(self, make: Callable[..., Any], method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        made = self._methods.get(method)
        if made is None:
            made = self._methods[method] = make(method, *arguments, **options)
        return made


class FormerConnections:
    """The connections on which no new call begins: each is closed after the last of its calls in flight."""

    def __init__(self) -> None:
        self._former: dict[PeerConnection, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def call(self, connection: PeerConnection) -> Iterator[None]:
        """Count a call on the connection, former or not, inside the `with`."""
        connection.calls += 1
        try:
            yield
        finally:
            connection.calls -= 1
            self._close_if_unused(connection)

    def add(self, connection: PeerConnection) -> None:
        """Note that no new call begins on the connection."""
        self._former[connection] = None
        self._close_if_unused(connection)

    async def close(self, grace: float | None) -> None:
        """Close all, also those with calls in flight, which end after the grace period; wait until they are closed."""
        await asyncio.gather(*(each.channel.close(grace) for each in self._former), *self._closing)

    def _close_if_unused(self, connection: PeerConnection) -> None:
        if connection in self._former and not connection.calls:
            del self._former[connection]
            closing = background.start("end of a former connection", connection.channel.close(None))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


Channel = grpc.aio.Channel
Metadata = tuple[tuple[str, str], ...] | None

LOOK_S = 1.0
"""Minimum time between two checks of the certificate files."""

_OPTIONS = [
    *GRPC_LIMITS,
    # A connection of its own: shared by address, a new channel may begin on a closed channel's ending connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long an attempt to connect may take: a busy process may need a second to answer one.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def connect(address: str, tls: Tls | None = None, shard: ShardOfRole | None = None) -> Channel:
    """Return a channel to host:port or unix:/path. It connects with the first call, and again after a failure.

    Calls are for this `shard`; a process of another shard refuses them.
    """
    metadata = ((SHARD_KEY, shard.metadata),) if shard is not None else None
    return cast(Channel, SocketChannel(Connections(address, tls), metadata))


class Connections:
    """The current connection for new calls to an address; a new one replaces it once the certificate files change.

    `former` has the replaced connections.
    """

    def __init__(self, address: str, tls: Tls | None) -> None:
        self._address = address
        self._files = RenewedFiles(tls) if tls is not None else None
        self._looked_s = 0.0
        self._current = self._opened()
        self.former = FormerConnections()

    @property
    def current(self) -> PeerConnection:
        if self._files is not None and (now_s := time.monotonic()) - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if self._files.renew():
                former, self._current = self._current, self._opened()
                self.former.add(former)
        return self._current

    async def close(self, grace: float | None) -> None:
        await asyncio.gather(self._current.channel.close(grace), self.former.close(grace))

    def _opened(self) -> PeerConnection:
        if self._files is None:
            return PeerConnection(grpc.aio.insecure_channel(self._address, options=_OPTIONS))
        credentials = self._files.pems.client_credentials()
        return PeerConnection(grpc.aio.secure_channel(self._address, credentials, options=_OPTIONS))


class SocketChannel:
    """A gRPC channel for generated stubs. Each call has a deadline, raises the error tree and is never left open.

    It does not use interceptors: with them a stream that its caller leaves stays open on both sides.
    """

    def __init__(self, connections: Connections, metadata: Metadata = None) -> None:
        self._connections = connections
        self._metadata = metadata

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, timeout: float | None = None, **call_options: Any) -> Any:
            connection = self._connections.current
            begin = connection.unary_unary(method, *arguments, **options)
            try:
                with self._connections.former.call(connection):
                    return await begin(request, timeout=timeout or DEADLINE_S, metadata=self._metadata, **call_options)
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                raise channel_error(method, error) from None

        return call

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., AsyncIterator[Any]]:
        async def call(requests: AsyncIterator[Any], **call_options: Any) -> AsyncIterator[Any]:
            connection = self._connections.current
            begin = connection.stream_stream(method, *arguments, **options)
            with self._connections.former.call(connection):
                responses = begin(_requests(method, requests), metadata=self._metadata, **call_options)
                try:
                    async for response in responses:
                        yield response
                except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                    raise channel_error(method, error) from None
                finally:
                    responses.cancel()

        return call

    @property
    def is_connected(self) -> bool:
        """Whether the peer is connected: an UnavailableError is then its own answer, and not the channel's."""
        return bool(self._connections.current.channel.get_state() == grpc.ChannelConnectivity.READY)

    async def connect(self) -> None:
        """Return once the peer is connected. The caller sets the deadline."""
        await self._connections.current.channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """End the connection; calls in flight raise UnavailableError after the grace period."""
        await self._connections.close(grace)


async def _requests(method: str, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the requests; an error in them would only cancel the call, so it is logged here."""
    try:
        async for request in requests:
            yield request
    except Exception as error:
        raise servicer_error(method, error) from None
