"""Calls between roles of one process, without a socket and with the same deadlines and errors as over one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, cast

from services.errors import DeadlineError, UnavailableError
from services.net.rpc.calls import DEADLINE_S, servicer_error
from services.net.rpc.channel import Channel
from services.process.metrics import RPC_SECONDS


class LocalServer:
    """Takes servicers as a gRPC server does; calls on its channel run the servicer directly."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Do nothing: the generated code calls this too, but the methods come by name below."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: dict[str, Any]) -> None:
        for name, handler in method_handlers.items():
            self._handlers[f"/{service_name}/{name}"] = handler

    def channel(self) -> Channel:
        """Return a channel for generated stubs."""
        return cast(Channel, _LocalChannel(self._handlers))


class _LocalChannel:
    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Awaitable[Any]]:
        seconds = RPC_SECONDS.labels(method)

        async def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            started = time.perf_counter()
            deadline = asyncio.timeout(timeout or DEADLINE_S)
            try:
                async with deadline:
                    return await self._handler(method).unary_unary(request, None)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, TimeoutError) and deadline.expired():
                    raise DeadlineError(f"{method} did not answer in time") from None
                raise servicer_error(method, error) from None
            finally:
                seconds.observe(time.perf_counter() - started)

        return call

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., AsyncIterator[Any]]:
        async def call(requests: AsyncIterator[Any], **_: Any) -> AsyncIterator[Any]:
            try:
                async with aclosing(self._handler(method).stream_stream(requests, None)) as responses:
                    async for response in responses:
                        yield response
            except (Exception, asyncio.CancelledError) as error:
                raise servicer_error(method, error) from None

        return call

    async def close(self, grace: float | None = None) -> None:
        """Do nothing: there is no socket."""

    def _handler(self, method: str) -> Any:
        handler = self._handlers.get(method)
        if handler is None:
            raise UnavailableError(f"{method} is not served in this process")
        return handler
