"""The gateway in a process of its own, as `bench.gateway` measures it.

python -m bench.gateway.process DIRECTORY script|real     prints its port; then answers commands on standard input
  connections     prints the number of connections that the gateway has announced to delivery
  collect         collects garbage; prints the number of objects freed
  broadcast N     sends N messages to all, one after the other; prints when it began, CLOCK_MONOTONIC nanoseconds
  unicast         sends each device a message of its own until all are acknowledged; prints begin and end
With `script` this program sends the pushes in place of delivery; with `real` the delivery role runs in this process,
and only the first two commands are answered. The gateway's
settings are CARILLON_GATEWAY_..., except its port, the limit on frames of a device, and the time limit for
acknowledgements, because the clients of a fan-out never acknowledge.
"""

import asyncio
import gc
import itertools
import sys
import time
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import uvloop

from protos.delivery.v1.delivery_pb2 import (
    AttachRequest,
    AttachResponse,
    GetBroadcastRequest,
    GetBroadcastResponse,
    Send,
)
from protos.delivery.v1.delivery_pb2_grpc import (
    DeliveryServiceServicer,
    DeliveryServiceStub,
    add_DeliveryServiceServicer_to_server,
)
from protos.push.v1.push_pb2 import AndroidStyle, Message
from protos.registry.v1.apps_pb2 import App, AppFact, Platform
from protos.registry.v1.registry_pb2 import FindDevicesRequest, FindDevicesResponse
from protos.registry.v1.registry_pb2_grpc import RegistryServiceServicer, add_RegistryServiceServicer_to_server
from services.delivery.main import build as build_delivery
from services.delivery.settings import DeliverySettings
from services.domain.apps import AppDirectory
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.settings import environment, load
from services.domain.topics import APPS, TOPICS
from services.errors import NotFoundError
from services.gateway.listener import DeviceListener
from services.gateway.main import build
from services.gateway.settings import GatewaySettings
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context, Server
from services.process import memory
from services.process.clock import SystemClock
from services.process.logs import configure
from services.process.runner import Service
from services.replica.peers import Peers
from testkit.delivery.settings import settings_without_vendors
from testkit.services import add_servicers, started, stop

APPKEY = "1000000001"
MASTER = bytes(32)
FIRST_MSGID = 2**52
_FIRST_BROADCAST = FIRST_MSGID + 2**32
"""A gateway sends a message once over each connection, so each broadcast has an id of its own."""

EXPIRES_MS = 1_900_000_000_000
MESSAGE = Message(is_notif=True, content="x" * 48, android=AndroidStyle(title="A title", sound=True))
_BATCH = 500
_SETTINGS = {
    "CARILLON_GATEWAY_PORT": "0",
    "CARILLON_GATEWAY_FRAMES_PER_10S": str(10**9),
    "CARILLON_GATEWAY_ACK_S": str(10**6),
}


class NumberingRegistry(RegistryServiceServicer):
    """The registry as the gateway sees it: each token is the hexadecimal number of its device."""

    async def FindDevices(self, request: FindDevicesRequest, context: Context) -> FindDevicesResponse:
        return FindDevicesResponse(numbers_plus_one=[int(token, 16) + 1 for token in request.tokens])


class RecordingDelivery(DeliveryServiceServicer):
    """The delivery service as the gateway sees it; `connections` holds the ids that the gateway has announced."""

    def __init__(self) -> None:
        self.connections: list[int] = []

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        raise NotFoundError("no broadcasts here: a gateway never asks for one")


class ForwardingDelivery(RecordingDelivery):
    """Passes the gateway's stream on to the delivery role."""

    def __init__(self, delivery: Channel) -> None:
        super().__init__()
        self._stub = DeliveryServiceStub(delivery)

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        async for response in self._stub.Attach(self._counted(requests)):
            yield response

    async def _counted(self, requests: AsyncIterator[AttachRequest]) -> AsyncIterator[AttachRequest]:
        async for request in requests:
            yield request
            self.connections += [connected.connection for connected in request.connected]


class ScriptedDelivery(RecordingDelivery):
    """Delivery in place of the role: sends pushes on command, and counts acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self._acknowledged = 0
        self._broadcast_ids = itertools.count(_FIRST_BROADCAST)
        self._unicasts: list[AttachResponse] = []
        self._news = asyncio.Event()
        self._out: asyncio.Queue[AttachResponse] = asyncio.Queue()

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        taking = asyncio.create_task(self._take(requests))
        try:
            while True:
                yield await self._out.get()
        finally:
            taking.cancel()

    async def _take(self, requests: AsyncIterator[AttachRequest]) -> None:
        async for request in requests:
            self.connections += [connected.connection for connected in request.connected]
            self._acknowledged += sum(len(reports.kinds) for reports in request.reports)
            self._news.set()

    def broadcast(self, count: int) -> int:
        sends = [_send(self.connections, next(self._broadcast_ids)) for _ in range(count)]
        began = time.monotonic_ns()
        for send in sends:
            self._out.put_nowait(AttachResponse(sends=[send]))
        return began

    async def unicast(self) -> tuple[int, int]:
        batches = self._of_each()
        goal = self._acknowledged + len(self.connections)
        began = time.monotonic_ns()
        for batch in batches:
            self._out.put_nowait(batch)
        while self._acknowledged < goal:
            self._news.clear()
            await self._news.wait()
        return began, time.monotonic_ns()

    def _of_each(self) -> list[AttachResponse]:
        """Return a message for each connection, made once, so that the CPU time of the rounds is the gateway's."""
        if not self._unicasts:
            sends = [_send([connection], FIRST_MSGID + index) for index, connection in enumerate(self.connections)]
            self._unicasts = [AttachResponse(sends=sends[at : at + _BATCH]) for at in range(0, len(sends), _BATCH)]
        return self._unicasts


def _send(connections: list[int], msgid: int) -> Send:
    return Send(
        message=MESSAGE,
        expires_ms=EXPIRES_MS,
        connections=array("Q", connections).tobytes(),
        msgids=array("Q", [msgid]).tobytes(),
    )


async def main(directory: Path, real: bool) -> None:
    env = {**environment(), **_SETTINGS}
    log = SqliteLog(directory / "log.db", TOPICS)
    fact = AppFact(app=App(appkey=APPKEY, platform=Platform.PLATFORM_ANDROID))
    await log.append([NewRecord(APPS.name, 0, APPKEY.encode(), fact.SerializeToString())])
    front, behind, registry, nobody = LocalServer(), LocalServer(), LocalServer(), LocalServer()
    add_RegistryServiceServicer_to_server(NumberingRegistry(), cast(Server, registry))  # type: ignore[abstract]
    delivery = ForwardingDelivery(behind.channel()) if real else ScriptedDelivery()
    add_DeliveryServiceServicer_to_server(delivery, cast(Server, front))
    peers = Peers(
        {"delivery": [front.channel()], "registry": [registry.channel()], "targeting": [nobody.channel()]}, TOPICS
    )
    context = RoleContext(log, SystemClock(), peers, MasterKey(MASTER), AppDirectory(log))
    services: list[Service] = [context.apps]
    if real:
        role = build_delivery(_delivery_settings(directory), context)
        add_servicers(role, behind)
        services += role.services
    services += build(load(GatewaySettings, env), context).services
    tasks = [await started(service) for service in services]
    memory.freeze_startup_objects()
    print(cast(DeviceListener, services[-1]).port, flush=True)
    await _run_commands(delivery)
    await stop(tasks)
    await log.close()


def _delivery_settings(directory: Path) -> DeliverySettings:
    """Return settings without push services: all devices here are connected."""
    return settings_without_vendors(data_dir=str(directory))


async def _run_commands(delivery: ForwardingDelivery | ScriptedDelivery) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode().strip():
        match line.split(), delivery:
            case ["connections"], _:
                print(len(delivery.connections), flush=True)
            case ["collect"], _:
                print(gc.collect(), flush=True)
            case ["broadcast", count], ScriptedDelivery():
                print(delivery.broadcast(int(count)), flush=True)
            case ["unicast"], ScriptedDelivery():
                print(*await delivery.unicast(), flush=True)


if __name__ == "__main__":
    configure("WARNING")
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2] == "real"))
