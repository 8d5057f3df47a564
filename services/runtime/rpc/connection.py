"""Connections to one peer after the other: the calls in flight on each, and its end after the last of them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from services.runtime.process import background


class Connection:
    """A channel for generated stubs, the number of its calls in flight, and its methods, each of which is made once."""

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
        self._former: dict[Connection, None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def call(self, connection: Connection) -> Iterator[None]:
        """Count a call on the connection, former or not, inside the `with`."""
        connection.calls += 1
        try:
            yield
        finally:
            connection.calls -= 1
            self._close_if_unused(connection)

    def add(self, connection: Connection) -> None:
        """Note that no new call begins on the connection."""
        self._former[connection] = None
        self._close_if_unused(connection)

    async def close(self, grace: float | None) -> None:
        """Close those with calls in flight too, which end after the grace period; wait until all are closed."""
        await asyncio.gather(*(each.channel.close(grace) for each in self._former), *self._closing)

    def _close_if_unused(self, connection: Connection) -> None:
        if connection in self._former and not connection.calls:
            del self._former[connection]
            closing = background.start("end of a former connection", connection.channel.close(None))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
