"""What devices and app servers reach of a process without sockets: the edge's applications, a gateway's connections."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Generic, TypeVar

import httpx

from edge.interfaces import Interfaces
from edge.settings import EdgeSettings
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.gateway.main import wire
from services.gateway.rules import Capacity
from services.gateway.settings import GatewaySettings
from services.process.clock import HangWatch
from services.process.runner import Service
from testkit.edge.asgi import AsgiAnswer, AsgiRequest
from tests.simulation.kernel.process import CURRENT, Process
from tests.simulation.world.websocket import GatewayEnd

_CAPACITY = Capacity(connections=10_000, pending=10_000)
_STOP_S = 10.0

OnAnswer = Callable[[AsgiAnswer | Exception], None]


class EdgeListener:
    """Service: the edge's three applications, which answer requests made in this process."""

    name = "edge"

    def __init__(self, settings: EdgeSettings, context: RoleContext) -> None:
        self._hangs = HangWatch(context.clock.now_ms)
        interfaces = Interfaces(settings, context, context.clock, self._hangs)
        self._applications = {"v2": interfaces.v2, "android": interfaces.android, "ios": interfaces.ios}
        self._requests: dict[asyncio.Task[None], OnAnswer] = {}
        self._is_open = False

    @property
    def services(self) -> list[Service]:
        """The services that run beside this one, and this one."""
        return [self._hangs, self]

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        self._is_open = True
        try:
            await asyncio.Event().wait()
        finally:
            self._is_open = False
            if self._requests:
                await asyncio.wait(self._requests, timeout=_STOP_S)
            for task in list(self._requests):
                task.cancel()
            self.release()

    def start(self, interface: str, request: AsgiRequest, on_answer: OnAnswer) -> None:
        """Begin to answer a request; `on_answer` gets the answer, or the error that the client sees."""
        if not self._is_open:
            on_answer(httpx.ConnectError("connection refused"))
            return
        task = asyncio.create_task(self._answer(interface, request, on_answer))
        self._requests[task] = on_answer
        task.add_done_callback(lambda done: self._requests.pop(done, None))

    def release(self) -> None:
        """Close the clients' connections, as the kernel does when the process ends."""
        for on_answer in self._requests.values():
            on_answer(httpx.RemoteProtocolError("the server disconnected without an answer"))
        self._requests.clear()

    async def _answer(self, interface: str, request: AsgiRequest, on_answer: OnAnswer) -> None:
        answer = await request.answer(self._applications[interface])
        on_answer(answer or httpx.RemoteProtocolError("the server disconnected without an answer"))


class GatewayListener:
    """Service: a gateway's connections, opened in this process."""

    name = "gateway"

    def __init__(self, settings: GatewaySettings, context: RoleContext, random: Random) -> None:
        self._gateway = wire(settings, context, _CAPACITY, None, random)
        self._is_open = False

    @property
    def services(self) -> list[Service]:
        """The services that run before devices connect, and this one."""
        return [*self._gateway.services, self]

    async def run(self, ready: asyncio.Event) -> None:
        sweeping = asyncio.create_task(self._gateway.sweeper.run())
        self._is_open = True
        ready.set()
        try:
            await asyncio.wait([sweeping])
            sweeping.result()
        finally:
            await self._gateway.drain.run()
            self._is_open = False
            sweeping.cancel()

    def accept(self, end: GatewayEnd) -> None:
        """Open the WebSocket connection of this end."""
        if self._is_open:
            end.open(self._gateway.new_connection(lambda: None))
        else:
            end.abort()


Listener = TypeVar("Listener", EdgeListener, GatewayListener)


class Listeners(Generic[Listener]):
    """The listener of each process of one role, and the role's definition, whose `build` makes them."""

    def __init__(self, make: Callable[[Any, RoleContext], Listener]) -> None:
        self._make: Callable[[Any, RoleContext], Listener] = make
        self._of: dict[Process, Listener] = {}

    def definition(self, production: RoleDefinition[Any]) -> RoleDefinition[Any]:
        """Return the role with the listener in place of the one that needs sockets."""
        return replace(production, build=self._build, serve=None)

    def find(self, process: Process | None) -> Listener | None:
        """Return the listener of the process; None: it does not run, or does not listen yet."""
        return self._of.get(process) if process is not None and process.is_alive else None

    def _build(self, settings: Any, context: RoleContext) -> BuiltRole:
        process = CURRENT.get()
        assert process is not None
        self._of[process] = listener = self._make(settings, context)
        return BuiltRole(type(listener).name, listener.services)


def edge_listeners() -> Listeners[EdgeListener]:
    return Listeners(EdgeListener)


def gateway_listeners(random: Random) -> Listeners[GatewayListener]:
    return Listeners(lambda settings, context: GatewayListener(settings, context, Random(random.getrandbits(64))))
