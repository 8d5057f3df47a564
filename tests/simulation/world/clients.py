"""What app servers and devices use to reach the service: HTTP calls, and WebSocket connections, over the network."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from random import Random
from typing import Any

import httpx

from carillon_device import UnavailableError
from carillon_device.connection import GatewayConnection
from testkit.edge.asgi import AsgiAnswer, AsgiRequest
from testkit.signing import signed
from tests.simulation.kernel.clock import START_MS
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.process import Process
from tests.simulation.model.acknowledgements import GatewayFrame
from tests.simulation.model.smoothness import FinishedCall
from tests.simulation.world.listeners import EdgeListener, GatewayListener, Listeners
from tests.simulation.world.websocket import DeviceEnd, GatewayEnd
from tests.soak.android_device import Gateway

PATIENT_S, IMPATIENT_S = (30.0,), (0.3, 2.0, 30.0)
"""Times, one of which a client waits for an answer: longer than any deadline, or also less than a slow answer takes."""

_ADDRESS = "192.0.2.1"

DelayOf = Callable[[], float]
"""Returns the seconds that the next message takes between the clients and the service."""


class SimulatedInterface:
    """One HTTP interface of the edge, called through a load balancer that does not know which edges run.

    With `calls` the balancer tries the other edges too where one refuses the connection, and each call of an app server
    is noted there with its end. `waits_s`: one of these times is how long the client of a request waits for the answer.
    """

    def __init__(
        self,
        name: str,
        edges: Sequence[RoleHost],
        listeners: Listeners[EdgeListener],
        delay_s: DelayOf,
        random: Random,
        calls: list[FinishedCall] | None = None,
        waits_s: Sequence[float] = PATIENT_S,
    ) -> None:
        self._name = name
        self._edges = edges
        self._listeners = listeners
        self._delay_s = delay_s
        self._random = random
        self._calls = calls
        self._waits_s = waits_s

    def only(self, edge: RoleHost) -> "SimulatedInterface":
        """Return the same interface of this edge alone, without a load balancer."""
        return SimulatedInterface(
            self._name, [edge], self._listeners, self._delay_s, self._random, self._calls, self._waits_s
        )

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *secrets: str,
        headers: Mapping[str, str] | None = None,
        statuses: Collection[int] = (200,),
    ) -> Mapping[str, Any]:
        content = signed(dict(body), *secrets)
        sent = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        request = AsgiRequest(method, path, [(b"content-type", b"application/json"), *sent], content)
        answer = await self._noted(request, f"{method} {path}")
        assert answer.status in statuses, answer
        decoded: Mapping[str, Any] = json.loads(answer.body)
        return decoded

    async def device_request(self, frame: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a frame of the device protocol over HTTP; return the answer frame, an error where there is none."""
        content = json.dumps(frame).encode()
        try:
            answer = await self._exchange(
                AsgiRequest("POST", "/device/v1", [(b"content-type", b"application/json")], content)
            )
        except httpx.TransportError as error:
            return {"type": "error", "code": 503, "desc": str(error)}
        decoded: Mapping[str, Any] = json.loads(answer.body)
        return decoded

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _noted(self, request: AsgiRequest, call: str) -> AsgiAnswer:
        """Return the answer; note how long it took, and what it was."""
        if self._calls is None:
            return await self._exchange(request)
        begun_s, result = asyncio.get_running_loop().time(), "nothing"
        try:
            answer = await self._balanced(request)
            result = str(json.loads(answer.body)["result"])
            return answer
        except httpx.TransportError as error:
            result = repr(error)
            raise
        finally:
            self._calls.append(FinishedCall(call, begun_s, asyncio.get_running_loop().time() - begun_s, result))

    async def _balanced(self, request: AsgiRequest) -> AsgiAnswer:
        """Return the answer of the first edge that accepts the connection."""
        *first, last = self._random.sample(self._edges, len(self._edges))
        for edge in first:
            with suppress(httpx.ConnectError):
                return await self._exchange_with(edge, request)
        return await self._exchange_with(last, request)

    async def _exchange(self, request: AsgiRequest) -> AsgiAnswer:
        return await self._exchange_with(self._random.choice(self._edges), request)

    async def _exchange_with(self, edge: RoleHost, request: AsgiRequest) -> AsgiAnswer:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[AsgiAnswer] = loop.create_future()
        process, listener = edge.process, self._listeners.find(edge.process)
        if process is None or listener is None:
            await asyncio.sleep(self._delay_s())
            raise httpx.ConnectError(f"{edge.name} does not run")

        def on_answer(answer: AsgiAnswer | Exception) -> None:
            loop.call_later(self._delay_s(), _settle, answered, answer, context=Context())

        has_arrived = False

        def arrive() -> None:
            nonlocal has_arrived
            has_arrived = True
            listener.start(self._name, request, on_answer)

        def die() -> None:
            on_answer(
                httpx.ReadError(f"{edge.name} was killed")
                if has_arrived
                else httpx.ConnectError(f"{edge.name} was killed")
            )

        forget = process.at_death(die)
        loop.call_later(self._delay_s(), arrive, context=process.context())
        try:
            async with asyncio.timeout(self._wait_s()):
                return await answered
        except TimeoutError:
            loop.call_later(self._delay_s(), request.leave, context=process.context())
            raise httpx.ReadTimeout(f"{edge.name} did not answer") from None
        finally:
            forget()

    def _wait_s(self) -> float:
        return self._waits_s[0] if len(self._waits_s) == 1 else self._random.choice(self._waits_s)


class SimulatedGateways(Gateway):
    """The gateways, of which a device gets one at random with each connection: a running one where `is_balanced`."""

    def __init__(
        self,
        gateways: Sequence[RoleHost],
        listeners: Listeners[GatewayListener],
        delay_s: DelayOf,
        random: Random,
        *,
        is_balanced: bool = False,
    ) -> None:
        super().__init__("ws://gateway/device/v1")
        self._is_balanced = is_balanced
        self._gateways = gateways
        self._listeners = listeners
        self._delay_s = delay_s
        self._random = random
        self._ends: list[DeviceEnd] = []
        self._connections = 0
        self._processes: dict[Process, int] = {}
        self.frames: list[GatewayFrame] = []
        """All text frames that gateways have received and sent, in their order."""

    def reset(self) -> None:
        """End all connections at once, as a router does that restarts; both ends are told."""
        for end in self._ends:
            end.disconnect(graceful=False)

    def lose(self) -> None:
        """Take all devices off the network: each knows that at once, and no gateway is told."""
        for end in self._ends:
            end.cut()
            end.disconnect(graceful=False)

    def stop_reading(self) -> Callable[[], None]:
        """Let the devices read nothing over their present connections; return a function that lets them read again."""
        ends = [end for end in self._ends if end.is_open]
        for end in ends:
            end.stop_reading()

        def read_again() -> None:
            for end in ends:
                end.read_again()

        return read_again

    async def open_connection(self) -> GatewayConnection:
        if not self._is_balanced:
            return await self._open_connection(self._random.choice(self._gateways))
        *first, last = self._random.sample(self._gateways, len(self._gateways))
        for gateway in first:
            with suppress(UnavailableError):
                return await self._open_connection(gateway)
        return await self._open_connection(last)

    async def _open_connection(self, gateway: RoleHost) -> GatewayConnection:
        loop = asyncio.get_running_loop()
        process, listener = gateway.process, self._listeners.find(gateway.process)
        if process is None or listener is None:
            await asyncio.sleep(self._delay_s())
            raise UnavailableError(f"{gateway.name} does not run")
        connection = GatewayConnection()
        opened: asyncio.Future[None] = loop.create_future()
        device_end = DeviceEnd(loop, Context, self._delay_s)
        self._connections += 1
        note = partial(self._note, self._connections, self._processes.setdefault(process, len(self._processes)))
        gateway_end = GatewayEnd(loop, process.context, _ADDRESS, self._delay_s, on_text=note)
        device_end.join(gateway_end)

        def arrive() -> None:
            gateway_end.deliver(answer)
            listener.accept(gateway_end)

        def answer() -> None:
            if opened.done():
                device_end.disconnect(graceful=False)
            else:
                device_end.open(connection)
                opened.set_result(None)

        def refuse() -> None:
            if not opened.done():
                opened.set_exception(UnavailableError(f"{gateway.name} was killed"))

        def die() -> None:
            gateway_end.die()
            if not opened.done():
                loop.call_later(self._delay_s(), refuse, context=Context())

        process.at_death(die)
        loop.call_later(self._delay_s(), arrive, context=process.context())
        await opened
        self._ends = [end for end in self._ends if end.is_open]
        self._ends.append(device_end)
        return connection

    def _note(self, connection: int, process: int, is_received: bool, payload: bytes) -> None:
        now_ms = START_MS + int(asyncio.get_running_loop().time() * 1000)
        self.frames.append(GatewayFrame(connection, process, now_ms, is_received, payload))


def _settle(answered: "asyncio.Future[AsgiAnswer]", answer: AsgiAnswer | Exception) -> None:
    if answered.done():
        return
    if isinstance(answer, Exception):
        answered.set_exception(answer)
    else:
        answered.set_result(answer)
