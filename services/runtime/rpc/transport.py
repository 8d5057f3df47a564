"""Calls between roles: over gRPC sockets, or straight to the servicer in the same process, with the same errors.

A role registers its servicers at a `Server` with the generated `add_...Servicer_to_server` and calls others through the
generated stubs on a `Channel`. `LocalServer.channel()` gives one without a socket. Every call has a deadline.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from services.runtime.errors import BY_CODE, CarillonError, DeadlineError, UnavailableError
from services.runtime.process.logs import logger
from services.runtime.process.metrics import RPC_ERRORS, RPC_SECONDS

Context = grpc.aio.ServicerContext[Any, Any]
Channel = grpc.aio.Channel
Server = grpc.aio.Server

DEADLINE_S = 10.0
"""Deadline of a call that names none, seconds."""

_MAX_BYTES = 32 * 1024 * 1024
_MAX_TEXT = 4000
_MAX_METADATA_BYTES = 64 * 1024
_LIMITS = [
    ("grpc.max_receive_message_length", _MAX_BYTES),
    ("grpc.max_send_message_length", _MAX_BYTES),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
]
_SERVER_OPTIONS = [
    *_LIMITS,
    # Without this two processes may share a port, and each would get half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_CHANNEL_OPTIONS = [
    *_LIMITS,
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of PEM text for mutual TLS: this process's certificate and key, and the authority of all of them."""

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A caller that was silent for so long is asked for a sign of life, and given up when none comes in time.

    So one that hangs or is gone without a word takes with it what it announced, such as a gateway its devices.
    """

    silence_s: float = 20
    answer_s: float = 5


KEEPALIVE = Keepalive()


def connect(address: str, tls: Tls | None = None) -> Channel:
    """A channel to host:port or unix:/path. Connecting happens with the first call, and again when it broke."""
    if tls is None:
        return cast(Channel, _SocketChannel(grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)))
    credentials = grpc.ssl_channel_credentials(
        tls.authority.read_bytes(), tls.key.read_bytes(), tls.certificate.read_bytes()
    )
    return cast(Channel, _SocketChannel(grpc.aio.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)))


def serve(addresses: Sequence[str], tls: Tls | None = None, keepalive: Keepalive = KEEPALIVE) -> Server:
    """A server that will listen at host:port or unix:/path; add servicers, then `await server.start()`.

    CarillonError: it cannot listen there.
    """
    options = [
        *_SERVER_OPTIONS,
        ("grpc.keepalive_time_ms", round(keepalive.silence_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive.answer_s * 1000)),
        # Without this an answer is waited for 60 s, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", round(keepalive.answer_s * 1000)),
    ]
    server = grpc.aio.server(options=options, interceptors=[_ServerErrors()])
    for address in addresses:
        try:
            _listen(server, address, tls)
        except RuntimeError:
            raise CarillonError(
                f"calls between roles cannot be served at {address}: it is in use, not allowed, or no address of this"
                " machine; CARILLON_<ROLE>_ADDR says where a role listens"
            ) from None
    return server


def _listen(server: Server, address: str, tls: Tls | None) -> None:
    if tls is None:
        server.add_insecure_port(address)
    else:
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        credentials = grpc.ssl_server_credentials([pair], tls.authority.read_bytes(), require_client_auth=True)
        server.add_secure_port(address, credentials)


class _ServerErrors(grpc.aio.ServerInterceptor):
    """Turns the error tree into gRPC statuses, and anything else into INTERNAL without its text."""

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
                _answering(method, cast(Any, handler.unary_unary)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(
                _streaming(method, cast(Any, handler.stream_stream)),
                handler.request_deserializer,
                handler.response_serializer,
            )
        raise CarillonError(f"{method}: only unary and two-way streaming calls are in use")


def _answering(method: str, behavior: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        started = time.perf_counter()
        try:
            return await behavior(request, context)
        except (Exception, asyncio.CancelledError) as error:
            await _abort(method, context, error)
        finally:
            RPC_SECONDS.labels(method).observe(time.perf_counter() - started)

    return answer


def _streaming(method: str, behavior: Callable[[Any, Any], AsyncGenerator[Any, None]]) -> Any:
    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(behavior(requests, context)) as responses:
                async for response in responses:
                    yield response
        except (Exception, asyncio.CancelledError) as error:
            await _abort(method, context, error)

    return stream


async def _abort(method: str, context: Any, error: BaseException) -> None:
    error = _as_carillon(method, error)
    await context.abort(grpc.StatusCode[error.code], str(error)[:_MAX_TEXT])


def _as_carillon(method: str, error: BaseException) -> CarillonError:
    """The error that a caller sees; a cancellation of the running task itself goes on."""
    if isinstance(error, asyncio.CancelledError):
        if _is_cancelled():
            raise error
        error = UnavailableError(f"{method} was given up")
    elif not isinstance(error, CarillonError):
        logger.error("a call failed", method=method, exc_info=error)
        error = CarillonError("internal error")
    RPC_ERRORS.labels(method, error.code).inc()
    return error


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task; not so when it waited for something that was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class _SocketChannel:
    """A gRPC channel as generated stubs use it. Each call has a deadline, raises the error tree and is never left open.

    Not made of interceptors: with them a stream that its caller leaves stays open on both sides.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Awaitable[Any]]:
        begin = self._channel.unary_unary(method, *arguments, **options)

        async def call(request: Any, timeout: float | None = None, **options: Any) -> Any:
            try:
                return await begin(request, timeout=timeout or DEADLINE_S, **options)
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                raise _from_grpc(method, error) from None

        return call

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., AsyncIterator[Any]]:
        begin = self._channel.stream_stream(method, *arguments, **options)

        async def call(requests: AsyncIterator[Any], **options: Any) -> AsyncIterator[Any]:
            responses = begin(_requests(method, requests), **options)
            try:
                async for response in responses:
                    yield response
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                raise _from_grpc(method, error) from None
            finally:
                responses.cancel()

        return call

    async def close(self, grace: float | None = None) -> None:
        """End the connection; calls under way raise UnavailableError once the grace is over."""
        await self._channel.close(grace)


async def _requests(method: str, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The requests; an error in them would only cancel the call, so it is logged here."""
    try:
        async for request in requests:
            yield request
    except Exception as error:
        raise _as_carillon(method, error) from None


def _from_grpc(method: str, error: grpc.aio.AioRpcError | asyncio.CancelledError) -> CarillonError:
    """The error that a caller sees; a cancellation of the running task itself goes on."""
    if isinstance(error, asyncio.CancelledError):
        if _is_cancelled():
            raise error
        return UnavailableError(f"{method} was given up")
    return BY_CODE.get(error.code().name, UnavailableError)(error.details() or error.code().name)


class LocalServer:
    """Collects servicers as a gRPC server does, and hands their calls over inside the process."""

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Part of what the generated code calls; the methods come by name below."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: dict[str, Any]) -> None:
        for name, handler in method_handlers.items():
            self._handlers[f"/{service_name}/{name}"] = handler

    def channel(self) -> Channel:
        """A channel for generated stubs whose calls run the servicer directly."""
        return cast(Channel, _LocalChannel(self._handlers))


class _LocalChannel:
    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            started = time.perf_counter()
            deadline = asyncio.timeout(timeout or DEADLINE_S)
            try:
                async with deadline:
                    return await self._handler(method).unary_unary(request, None)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, TimeoutError) and deadline.expired():
                    raise DeadlineError(f"{method} did not answer in time") from None
                raise _as_carillon(method, error) from None
            finally:
                RPC_SECONDS.labels(method).observe(time.perf_counter() - started)

        return call

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., AsyncIterator[Any]]:
        async def call(requests: AsyncIterator[Any], **_: Any) -> AsyncIterator[Any]:
            try:
                async with aclosing(self._handler(method).stream_stream(requests, None)) as responses:
                    async for response in responses:
                        yield response
            except (Exception, asyncio.CancelledError) as error:
                raise _as_carillon(method, error) from None

        return call

    async def close(self, grace: float | None = None) -> None:
        """Nothing to close: there is no socket."""

    def _handler(self, method: str) -> Any:
        handler = self._handlers.get(method)
        if handler is None:
            raise UnavailableError(f"{method} is not served in this process")
        return handler
