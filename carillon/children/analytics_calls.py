"""The operators' calls of analytics at the commands' socket of `carillon up`, passed on to the child process."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from protos.analytics.v1.analytics_pb2 import DESCRIPTOR
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub, add_AnalyticsServiceServicer_to_server
from services.runtime.errors import UnavailableError
from services.runtime.rpc.channel import Channel, SocketChannel
from services.runtime.rpc.server import Context, Server


def add_forwarded_analytics(channel: Channel, server: Server) -> None:
    """Serve the calls by passing them on to the channel."""
    add_AnalyticsServiceServicer_to_server(_ForwardedAnalytics(channel), server)  # type: ignore[arg-type]


class _ForwardedAnalytics:
    """A servicer that passes on every method, with the time that the caller gives."""

    def __init__(self, channel: Channel) -> None:
        self._channel = cast(SocketChannel, channel)
        stub = AnalyticsServiceStub(channel)
        for method in DESCRIPTOR.services_by_name["AnalyticsService"].methods:
            forwarded = self._stream if method.client_streaming else self._answer
            setattr(self, method.name, forwarded(getattr(stub, method.name)))

    def _answer(self, call: Callable[..., Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def answer(request: Any, context: Context) -> Any:
            with self._plain_errors():
                return await call(request, timeout=context.time_remaining())

        return answer

    def _stream(
        self, call: Callable[..., AsyncIterator[Any]]
    ) -> Callable[[AsyncIterator[Any], Context], AsyncGenerator[Any, None]]:
        async def stream(requests: AsyncIterator[Any], context: Context) -> AsyncGenerator[Any, None]:
            with self._plain_errors():
                async for response in call(requests):
                    yield response

        return stream

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Say in plain words that the child process is not there."""
        try:
            yield
        except UnavailableError:
            if self._channel.is_connected:
                raise
            raise UnavailableError("its process is starting; the service's log says why") from None
