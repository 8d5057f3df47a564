"""The simulated network: calls between simulated processes, with delays, losses and resets.

A channel has the form of services/net/rpc/local.py, so generated stubs use it. Requests and responses are bytes on
their way, so processes share no object. Each call runs in a task of the process that serves it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple, cast

from services.errors import CarillonError, DeadlineError, UnavailableError
from services.net.rpc.calls import DEADLINE_S, servicer_error
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from tests.simulation.kernel.loop import SimulatedLoop
from tests.simulation.kernel.network.stream import Stream
from tests.simulation.kernel.process import CURRENT, Process
from tests.simulation.kernel.world import World

Route = tuple[str, str]
"""The name of the process that sends, and of the one that receives."""

_CONNECT_S = 0.02
"""How often it is tried to connect to a process."""

_RESET_AFTER_S = 0.005
"""How long a call has run when its connection breaks, on average."""

KEEPALIVE_S = 25.0
"""After so much silence a connection counts as lost, as services/net/rpc/server.py sets it."""


class Answer(NamedTuple):
    """A response on its way, or the error in its place."""

    message: type[Any] | None
    content: bytes
    error: CarillonError | None

    @classmethod
    def of(cls, message: Any) -> "Answer":
        return cls(type(message), message.SerializeToString(), None)

    def read(self) -> Any:
        if self.error is not None:
            raise type(self.error)(str(self.error))
        assert self.message is not None
        return self.message.FromString(self.content)


class Server(LocalServer):
    """The calls that a process answers; roles add their servicers to it."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process

    def handler(self, method: str) -> Any:
        handler = self._handlers.get(method)
        if handler is None:
            raise UnavailableError(f"{method} is not served by {self.process.name}")
        return handler


class Network:
    """All connections of a world. `delay_s` is the time of a message on its way.

    `reset_rate` is the share of the messages whose connection breaks instead, and of the calls whose connection breaks
    while they run; a world raises it for a while.
    """

    def __init__(self, world: World, delay_s: Callable[[], float]) -> None:
        self.world = world
        self.reset_rate = 0.0
        self._delay_s = delay_s
        self._random = world.random("network")
        self._servers: dict[str, list[Server]] = {}
        self._blocked_until_s: dict[Route, float] = {}
        self._streams: dict[int, Stream] = {}
        self._numbers = 0

    @property
    def loop(self) -> SimulatedLoop:
        return self.world.loop

    def listen(self, server: Server) -> None:
        """Let a process answer calls under its name, in place of the other processes of this name while it does."""
        self._servers.setdefault(server.process.name, []).append(server)

    def end_listening(self, server: Server) -> None:
        """Refuse new calls; those in progress end, and streams end at once."""
        self._servers[server.process.name].remove(server)
        for stream in list(self._streams.values()):
            if stream.process is server.process:
                stream.break_off()

    def channel(self, target: str) -> Channel:
        """Return a channel to the process of this name; the process that calls is the one that uses it."""
        return cast(Channel, _SimulatedChannel(self, target))

    def block(self, source: str, target: str, seconds: float) -> None:
        """Hold back what `source` sends to `target` for this time: a partition in one direction.

        Streams between the two break when the time exceeds KEEPALIVE_S.
        """
        loop = self.world.loop
        self._blocked_until_s[source, target] = max(
            self._blocked_until_s.get((source, target), 0), loop.time() + seconds
        )
        if seconds > KEEPALIVE_S:
            loop.call_later(KEEPALIVE_S, self._break_streams, {source, target}, context=Context())

    def arrival_s(self, source: str, target: str) -> float:
        """Return when a message that is sent now arrives."""
        return max(self.world.loop.time(), self._blocked_until_s.get((source, target), 0)) + self._delay_s()

    async def transit(self, source: str, target: str) -> None:
        """Return when a message that is sent now has arrived. UnavailableError: its connection broke."""
        await asyncio.sleep(self.arrival_s(source, target) - self.world.loop.time())
        if self._random.random() < self.reset_rate:
            self.world.trace.event("reset", source=source, target=target)
            raise UnavailableError("the connection was reset")

    def server(self, target: str) -> Server:
        """Return who answers at this name: the newest of its processes. UnavailableError: nobody does."""
        for server in reversed(self._servers.get(target, ())):
            if server.process.is_alive:
                return server
        raise UnavailableError(f"nothing listens at {target}")

    def is_served(self, target: str) -> bool:
        """Return whether a process answers at this name."""
        return any(server.process.is_alive for server in self._servers.get(target, ()))

    def is_reset(self, source: str, target: str) -> bool:
        """Return whether the connection of a stream breaks with the message that is sent now."""
        if not self.reset_rate or self._random.random() >= self.reset_rate:
            return False
        self.world.trace.event("stream reset", source=source, target=target)
        return True

    def reset_after_s(self) -> float | None:
        """Return after how many seconds the connection of a call that begins now breaks; None: it does not."""
        if not self.reset_rate or self._random.random() >= self.reset_rate:
            return None
        return self._random.expovariate(1 / _RESET_AFTER_S)

    def opened(self, stream: Stream) -> Callable[[], object]:
        """Note a stream, so that it can break; return a function that notes its end."""
        self._numbers += 1
        number = self._numbers
        self._streams[number] = stream
        return lambda: self._streams.pop(number, None)

    def _break_streams(self, between: set[str]) -> None:
        for stream in list(self._streams.values()):
            if {stream.client, stream.server} == between:
                self.world.trace.event("stream broken", client=stream.client, server=stream.server)
                stream.break_off()


class _SimulatedChannel:
    def __init__(self, network: Network, target: str) -> None:
        self._network = network
        self._target = target

    async def connect(self) -> None:
        """Return once a call that begins then reaches a process."""
        while not self._network.is_served(self._target):
            await asyncio.sleep(_CONNECT_S)

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            deadline = asyncio.timeout(timeout or DEADLINE_S)
            try:
                async with deadline:
                    answer = await self._exchange(method, request)
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise DeadlineError(f"{method} did not answer in time") from None
            return answer.read()

        return call

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., AsyncIterator[Any]]:
        async def call(requests: AsyncIterator[Any], **_: Any) -> AsyncIterator[Any]:
            source = caller()
            await self._network.transit(source, self._target)
            server = self._network.server(self._target)
            stream = Stream(self._network, source, server, method)
            try:
                async for response in stream.responses(requests):
                    yield response
            finally:
                stream.leave()

        return call

    async def close(self, grace: float | None = None) -> None:
        """Do nothing: connections are made for each call."""

    async def _exchange(self, method: str, request: Any) -> Answer:
        network, source, target = self._network, caller(), self._target
        message, content = type(request), request.SerializeToString()
        await network.transit(source, target)
        server = network.server(target)
        process = server.process
        network.world.trace.event("call", method=method, source=source, target=target, size=len(content))
        loop = network.world.loop
        answered: asyncio.Future[Answer] = loop.create_future()
        serving = process.start(self._serve(server, method, message.FromString(content), source, answered))

        def abandon(event: str) -> None:
            """Cancel the handler as a gRPC server does when it learns that the caller or the connection has gone."""
            if not serving.done():
                network.world.trace.event(event, method=method, source=source, target=target)
                loop.call_at(network.arrival_s(source, target), serving.cancel, context=process.context())

        def lose() -> None:
            loop.call_at(network.arrival_s(target, source), _lose, answered, context=Context())

        def reset() -> None:
            if not answered.done() and not serving.done():
                abandon("call reset")
                lose()

        calling = CURRENT.get()
        ends = [
            process.at_death(lose),
            *([calling.at_death(partial(abandon, "caller died"))] if calling is not None else []),
        ]
        if (reset_s := network.reset_after_s()) is not None:
            loop.call_later(reset_s, reset, context=Context())
        try:
            return await answered
        finally:
            for end in ends:
                end()
            if not answered.done() or answered.cancelled():
                abandon("call given up")

    async def _serve(
        self, server: Server, method: str, request: Any, source: str, answered: "asyncio.Future[Answer]"
    ) -> None:
        """Run in the process that serves the call."""
        try:
            answer = Answer.of(await server.handler(method).unary_unary(request, None))
        except (Exception, asyncio.CancelledError) as error:
            answer = Answer(None, b"", servicer_error(method, error))
        try:
            await self._network.transit(self._target, source)
        except UnavailableError as error:
            answer = Answer(None, b"", error)
        if not answered.done():
            self._network.world.trace.event(
                "answer",
                method=method,
                to=source,
                size=len(answer.content),
                error=answer.error.status if answer.error else None,
            )
            answered.set_result(answer)


def caller() -> str:
    """Return the name of the process that runs now."""
    process = CURRENT.get()
    return process.name if process is not None else "world"


def _lose(answered: "asyncio.Future[Answer]") -> None:
    if not answered.done():
        answered.set_result(Answer(None, b"", UnavailableError("the connection was lost")))
