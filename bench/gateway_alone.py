"""The gateway in a process of its own, with a delivery that is only a script: half of `bench.gateway`.

python -m bench.gateway_alone DIRECTORY     prints its port; then on standard input
  connections     prints how many devices delivery has heard of
  memory          prints the process's resident bytes
  broadcast       one message to all; prints when it began, CLOCK_MONOTONIC nanoseconds
  unicast ROUNDS  a message of its own to each device, until all are acknowledged, ROUNDS times; prints begin and end
"""

import asyncio
import gc
import sys
import time
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import psutil
import uvloop

from protos.delivery.v1.delivery_pb2 import (
    AttachRequest,
    AttachResponse,
    GetBroadcastRequest,
    GetBroadcastResponse,
    Send,
)
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceServicer, add_DeliveryServiceServicer_to_server
from protos.push.v1.push_pb2 import AndroidStyle, Message
from protos.registry.v1.apps_pb2 import App, AppFact, Platform
from services.gateway.main import GatewaySettings, build
from services.gateway.server import Door
from services.runtime.apps import AppDirectory
from services.runtime.clock import SystemClock
from services.runtime.errors import NotFoundError
from services.runtime.keys import Keyring
from services.runtime.log import Draft
from services.runtime.peers import Peers
from services.runtime.role import Surroundings
from services.runtime.rpc import Context, LocalServer, Server
from services.runtime.runner import Service
from services.runtime.sqlite_log import SqliteLog
from services.runtime.topics import APPS

APPKEY = "1000000001"
MASTER = bytes(32)
FIRST_MSGID = 2**52
EXPIRES_MS = 1_900_000_000_000
MESSAGE = Message(is_notif=True, content="x" * 48, android=AndroidStyle(title="A title", sound=True))
_BATCH = 500


class Script(DeliveryServiceServicer):
    """Hands out what it is told to and counts acknowledgements."""

    def __init__(self) -> None:
        self.connections: list[int] = []
        self.acknowledged = 0
        self.news = asyncio.Event()
        self._out: asyncio.Queue[AttachResponse] = asyncio.Queue()

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        raise NotFoundError("no broadcasts here: a gateway never asks for one")

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
            self.acknowledged += sum(len(reports.kinds) for reports in request.reports)
            self.news.set()

    def broadcast(self) -> int:
        send = Send(
            message=MESSAGE,
            expires_ms=EXPIRES_MS,
            connections=array("Q", self.connections).tobytes(),
            msgids=array("Q", [FIRST_MSGID]).tobytes(),
        )
        began = time.monotonic_ns()
        self._out.put_nowait(AttachResponse(sends=[send]))
        return began

    async def unicast(self, rounds: int) -> tuple[int, int]:
        sends = [
            Send(
                message=MESSAGE,
                expires_ms=EXPIRES_MS,
                connections=array("Q", [connection]).tobytes(),
                msgids=array("Q", [FIRST_MSGID + index]).tobytes(),
            )
            for index, connection in enumerate(self.connections)
        ]
        batches = [AttachResponse(sends=sends[at : at + _BATCH]) for at in range(0, len(sends), _BATCH)]
        began = time.monotonic_ns()
        for _ in range(rounds):
            goal = self.acknowledged + len(self.connections)
            for batch in batches:
                self._out.put_nowait(batch)
            while self.acknowledged < goal:
                self.news.clear()
                await self.news.wait()
        return began, time.monotonic_ns()


async def main(directory: Path) -> None:
    log = SqliteLog(directory / "log.db")
    fact = AppFact(app=App(appkey=APPKEY, platform=Platform.PLATFORM_ANDROID))
    await log.append([Draft(APPS.name, 0, APPKEY.encode(), fact.SerializeToString())])
    script, delivery, nobody = Script(), LocalServer(), LocalServer()
    add_DeliveryServiceServicer_to_server(script, cast(Server, delivery))
    peers = Peers({"delivery": [delivery.channel()], "registry": [nobody.channel()], "targeting": [nobody.channel()]})
    apps = AppDirectory(log)
    settings = GatewaySettings(gateway_port=0, gateway_frames_per_10s=1_000_000_000)
    role = build(settings, Surroundings(log, SystemClock(), peers, Keyring(MASTER), apps))
    tasks = [await _start(service) for service in (apps, *role.services)]
    print(cast(Door, role.services[-1]).port, flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := (await lines.readline()).decode().split():
        match line:
            case ["connections"]:
                print(len(script.connections), flush=True)
            case ["memory"]:
                gc.collect()
                print(psutil.Process().memory_info().rss, flush=True)
            case ["broadcast"]:
                print(script.broadcast(), flush=True)
            case ["unicast", rounds]:
                print(*await script.unicast(int(rounds)), flush=True)
    for task in reversed(tasks):
        task.cancel()
        await asyncio.wait([task])
    await log.close()


async def _start(service: Service) -> "asyncio.Task[None]":
    ready = asyncio.Event()
    task = asyncio.create_task(service.run(ready))
    await ready.wait()
    return task


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
