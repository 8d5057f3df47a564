"""A two-way stream between two simulated processes: two ordered pipes, and a task of the process that serves it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import Context
from typing import Any, Protocol

from services.errors import CarillonError, UnavailableError
from services.net.rpc.calls import servicer_error
from services.process import background
from tests.simulation.kernel.loop import SimulatedLoop
from tests.simulation.kernel.process import CURRENT, Process


class Served(Protocol):
    """The server that a stream leads to."""

    process: Process

    def handler(self, method: str) -> Any: ...


class Carrier(Protocol):
    """What a stream needs of the network."""

    @property
    def loop(self) -> SimulatedLoop: ...

    def arrival_s(self, source: str, target: str) -> float:
        """Return when a message that is sent now arrives."""
        ...

    def is_reset(self, source: str, target: str) -> bool:
        """Return whether the connection of a stream breaks with the message that is sent now."""
        ...

    def opened(self, stream: "Stream") -> Callable[[], object]:
        """Note a stream, so that it can break; return a function that notes its end."""
        ...


class _Pipe:
    """Messages in one direction, in order. `None` is the end; an error is raised by the reader."""

    def __init__(self, carrier: Carrier, source: str, target: str) -> None:
        self._carrier = carrier
        self._source = source
        self._target = target
        self._arrived: deque[tuple[type[Any], bytes] | CarillonError | None] = deque()
        self._last_s = 0.0
        self._under_way: deque[tuple[type[Any], bytes] | CarillonError | None] = deque()
        self._changed = asyncio.Event()
        self._is_broken = False

    def send(self, item: "tuple[type[Any], bytes] | CarillonError | None") -> None:
        """Send a message; it arrives after all that were sent before it."""
        self._last_s = max(self._last_s, self._carrier.arrival_s(self._source, self._target))
        self._under_way.append(item)
        self._carrier.loop.call_at(self._last_s, self._deliver, context=Context())

    def break_off(self) -> None:
        """Lose what is on its way; the reader gets an error after what has arrived."""
        if not self._is_broken:
            self._is_broken = True
            self._arrived.append(UnavailableError("the connection was lost"))
            self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            while not self._arrived:
                self._changed.clear()
                await self._changed.wait()
            item = self._arrived.popleft()
            if item is None:
                return
            if isinstance(item, CarillonError):
                raise type(item)(str(item))
            message, content = item
            yield message.FromString(content)

    def _deliver(self) -> None:
        """Let the next message arrive: the loop may call the timers of one moment in any order."""
        item = self._under_way.popleft()
        if not self._is_broken:
            self._arrived.append(item)
            self._changed.set()


class Stream:
    """One stream. `client` and `server` are the names of its processes; the client is the one that runs now.

    `process` is the one that serves it.
    """

    def __init__(self, carrier: Carrier, client: str, server: Served, method: str) -> None:
        self.client = client
        self.server = server.process.name
        self._carrier = carrier
        self._method = method
        self._up = _Pipe(carrier, client, self.server)
        self._down = _Pipe(carrier, self.server, client)
        self.process = server.process
        self._serving = server.process.start(self._serve(server.handler(method)))
        ends = [process.at_death(self.break_off) for process in (server.process, CURRENT.get()) if process is not None]
        ended = [*ends, carrier.opened(self)]
        self._serving.add_done_callback(lambda _: [end() for end in ended], context=Context())

    async def responses(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Send the requests, and yield the responses. UnavailableError: the connection was lost."""
        sending = background.start(f"requests of {self._method}", self._send(requests))
        try:
            async for response in self._down:
                yield response
        finally:
            sending.cancel()

    def leave(self) -> None:
        """End the stream on the client's side; the serving task is cancelled when the server learns it."""
        at_s = self._carrier.arrival_s(self.client, self.server)
        self._carrier.loop.call_at(at_s, self._serving.cancel, context=self.process.context())

    def break_off(self) -> None:
        """Lose the connection: the client gets an error, and the serving task is cancelled."""
        self._up.break_off()
        self._down.break_off()
        self._serving.cancel()

    async def _send(self, requests: AsyncIterator[Any]) -> None:
        try:
            async for request in requests:
                if self._carrier.is_reset(self.client, self.server):
                    self.break_off()
                    return
                self._up.send((type(request), request.SerializeToString()))
        except Exception as error:
            self.break_off()
            raise servicer_error(self._method, error) from None
        self._up.send(None)

    async def _serve(self, handler: Any) -> None:
        try:
            async with aclosing(handler.stream_stream(aiter(self._up), None)) as responses:
                async for response in responses:
                    if self._carrier.is_reset(self.server, self.client):
                        self.break_off()
                    self._down.send((type(response), response.SerializeToString()))
        except (Exception, asyncio.CancelledError) as error:
            self._down.send(servicer_error(self._method, error))
        else:
            self._down.send(None)
