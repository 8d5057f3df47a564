"""The gRPC server of a process. A role adds its servicers with the generated `add_...Servicer_to_server`."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import grpc
import grpc.aio

from services.errors import CarillonError, UnavailableError
from services.net.rpc.caller import CallerCheck, Permissions, ShardOfRole
from services.net.rpc.calls import GRPC_LIMITS, error_metadata, servicer_error
from services.net.rpc.tls import Tls
from services.process.metrics import RPC_SECONDS

Context = grpc.aio.ServicerContext[Any, Any]
Server = grpc.aio.Server

_MAX_TEXT = 4000
_STOPPING = "the process is stopping; ask again"
_OPTIONS = [
    *GRPC_LIMITS,
    # Without this two processes may share a port, and each would get half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


@dataclass(frozen=True, slots=True)
class Keepalive:
    """When the server pings a silent client, and how long the client may take to answer before it is disconnected.

    The streams of a client that hangs or is gone end then, and with them what they announced, such as a gateway's
    connected devices.
    """

    silence_s: float = 20
    answer_s: float = 5


KEEPALIVE = Keepalive()


class Streams:
    """The open streams of a server, which must be ended when it stops: they would not end by themselves."""

    def __init__(self) -> None:
        self._are_ending = False
        self._waiting: set[asyncio.Task[Any]] = set()

    def end(self) -> None:
        """End all streams, and from now on every new one; their callers get UnavailableError.

        Only tasks that wait for a response are cancelled: cancelled in a write, gRPC would tell the caller nothing.
        """
        self._are_ending = True
        for task in self._waiting:
            task.cancel()

    async def until_end(self, responses: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Yield the responses. UnavailableError: the stream was ended."""
        async with aclosing(responses):
            while True:
                try:
                    yield await self._next(responses)
                except StopAsyncIteration:
                    return

    async def _next(self, responses: AsyncGenerator[Any, None]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if self._are_ending:
            raise UnavailableError(_STOPPING)
        self._waiting.add(task)
        try:
            return await anext(responses)
        except asyncio.CancelledError:
            if not self._are_ending:
                raise
            task.uncancel()
            raise UnavailableError(_STOPPING) from None
        finally:
            self._waiting.discard(task)


def serve(
    addresses: Sequence[str],
    tls: Tls | None = None,
    keepalive: Keepalive = KEEPALIVE,
    permissions: Permissions = MappingProxyType({}),
    users: Mapping[str, str] = MappingProxyType({}),
    shard: ShardOfRole | None = None,
    *,
    believes_origins: bool = False,
    streams: Streams | None = None,
) -> Server:
    """Return a server for host:port or unix:/path addresses; add servicers, then `await server.start()`.

    With `tls` a method may be called by the roles in `permissions` alone. `users` are those of a UserSocket in front of
    the server. Calls that are meant for another `shard` are refused. `believes_origins`: see CallerCheck.
    `streams` collects the server's open streams.
    CarillonError: it cannot listen at an address.
    """
    check = CallerCheck(permissions if tls is not None else None, users, shard, believes_origins)
    options = [
        *_OPTIONS,
        ("grpc.keepalive_time_ms", round(keepalive.silence_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive.answer_s * 1000)),
        # Without this the answer may take 60 s, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", round(keepalive.answer_s * 1000)),
    ]
    server = grpc.aio.server(options=options, interceptors=[_CallInterceptor(check, streams or Streams())])
    for address in addresses:
        try:
            if tls is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, tls.server_credentials())
        except RuntimeError:
            raise CarillonError(
                f"calls between roles cannot be served at {address}: it is in use, not allowed, or no address of this"
                " machine; CARILLON_<ROLE>_ADDR says where a role listens"
            ) from None
    return server


class _CallInterceptor(grpc.aio.ServerInterceptor):
    """Checks the caller, and answers errors: those of the tree with their gRPC status, and all others with INTERNAL and
    without their text."""

    def __init__(self, check: CallerCheck, streams: Streams) -> None:
        self._check = check
        self._streams = streams

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None:
            return handler
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _answering(method, cast(Any, handler.unary_unary), self._check),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(
                _streaming(method, cast(Any, handler.stream_stream), self._check, self._streams),
                handler.request_deserializer,
                handler.response_serializer,
            )
        raise CarillonError(f"{method}: only unary and two-way streaming calls are in use")


def _answering(method: str, behavior: Callable[[Any, Any], Awaitable[Any]], check: CallerCheck) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        started = time.perf_counter()
        try:
            check.check(method, context)
            check.attest(request, context)
            return await behavior(request, context)
        except (Exception, asyncio.CancelledError) as error:
            await _abort(method, context, error)
        finally:
            RPC_SECONDS.labels(method).observe(time.perf_counter() - started)

    return answer


def _streaming(
    method: str, behavior: Callable[[Any, Any], AsyncGenerator[Any, None]], check: CallerCheck, streams: Streams
) -> Any:
    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            await _check_stream(method, requests, context, check)
            async with aclosing(streams.until_end(behavior(requests, context))) as responses:
                async for response in responses:
                    yield response
        except (Exception, asyncio.CancelledError) as error:
            await _abort(method, context, error)

    return stream


async def _check_stream(method: str, requests: AsyncIterator[Any], context: Any, check: CallerCheck) -> None:
    """Raise the refusal only once the first request is there: a client that still writes it may not see the status."""
    try:
        check.check(method, context)
    except CarillonError:
        await anext(requests, None)
        raise


async def _abort(method: str, context: Any, error: BaseException) -> None:
    error = servicer_error(method, error)
    await context.abort(grpc.StatusCode[error.status], str(error)[:_MAX_TEXT], error_metadata(error))


# A gRPC server as a service.

_GRACE_S = 5


class RpcListener:
    """Runs a gRPC server; when it stops, calls in flight get five seconds to end, and its `streams` end at once."""

    def __init__(self, name: str, server: Server, streams: Streams | None = None) -> None:
        self.name = name
        self._server = server
        self._streams = streams

    async def run(self, ready: asyncio.Event) -> None:
        await self._server.start()
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            if self._streams is not None:
                self._streams.end()
            await self._server.stop(grace=_GRACE_S)
