"""Calls to other roles over gRPC sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc
import grpc.aio

from services.runtime.rpc.errors import channel_error, servicer_error
from services.runtime.rpc.limits import DEADLINE_S, GRPC_LIMITS
from services.runtime.rpc.tls import Tls

Channel = grpc.aio.Channel

_OPTIONS = [
    *GRPC_LIMITS,
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def connect(address: str, tls: Tls | None = None) -> Channel:
    """Return a channel to host:port or unix:/path. It connects with the first call, and again after a failure."""
    if tls is None:
        return cast(Channel, SocketChannel(grpc.aio.insecure_channel(address, options=_OPTIONS)))
    channel = grpc.aio.secure_channel(address, tls.client_credentials(), options=_OPTIONS)
    return cast(Channel, SocketChannel(channel))


class SocketChannel:
    """A gRPC channel for generated stubs. Each call has a deadline, raises the error tree and is never left open.

    It does not use interceptors: with them a stream that its caller leaves stays open on both sides.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Awaitable[Any]]:
        begin = self._channel.unary_unary(method, *arguments, **options)

        async def call(request: Any, timeout: float | None = None, **options: Any) -> Any:
            try:
                return await begin(request, timeout=timeout or DEADLINE_S, **options)
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                raise channel_error(method, error) from None

        return call

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., AsyncIterator[Any]]:
        begin = self._channel.stream_stream(method, *arguments, **options)

        async def call(requests: AsyncIterator[Any], **options: Any) -> AsyncIterator[Any]:
            responses = begin(_requests(method, requests), **options)
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
        """Whether the peer is there: an error that says it is unavailable is then its own answer."""
        return bool(self._channel.get_state() == grpc.ChannelConnectivity.READY)

    async def close(self, grace: float | None = None) -> None:
        """End the connection; calls in flight raise UnavailableError after the grace period."""
        await self._channel.close(grace)


async def _requests(method: str, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the requests; an error in them would only cancel the call, so it is logged here."""
    try:
        async for request in requests:
            yield request
    except Exception as error:
        raise servicer_error(method, error) from None
