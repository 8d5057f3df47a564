"""Benchmark of a pause: how soon a running broadcast of the app stops, with many devices on one slow gateway.

    python -m bench.pause --devices 100000 --frames-per-s 20000

Delivery sends a broadcast to a gateway process over gRPC; the gateway's devices are simulated, and writing a frame
keeps its core busy for 1 / frames-per-s. The app is paused when a tenth of the devices have the frame. Printed are the
frames that were still written and the time from the pause's append to the log until the last of them. Then the app is
resumed, and each device must be written to exactly once.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyroaring import BitMap

from bench.pause.gateway import APP, PARTITIONS
from bench.programs import Program
from protos.push.v1.push_pb2 import KIND_BROADCAST, Audience, Everyone, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, AppFact, Pause
from protos.runtime.v1.log_pb2 import Meta
from protos.targeting.v1.targeting_pb2 import (
    CountAudienceRequest,
    CountAudienceResponse,
    CountValuesRequest,
    CountValuesResponse,
    FindAddressedRequest,
    FindAddressedResponse,
    PartitionAudience,
    ResolveRequest,
    ResolveResponse,
    WaitAddressedRequest,
    WaitAddressedResponse,
)
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceServicer, add_TargetingServiceServicer_to_server
from services.delivery.main import ROLE, build
from services.domain.apps import AppDirectory
from services.domain.ids import event_id
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.topics import APPS, PUSH_COMMANDS, TOPICS
from services.errors import UnavailableError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.net.rpc.server import serve
from services.process.clock import SystemClock
from services.replica.peers import Peers
from testkit.delivery.settings import settings_without_vendors
from testkit.ports import free_ports
from testkit.services import running_services

_POLL_S = 0.02
_QUIET_S = 3.0


class WholeAudience(TargetingServiceServicer):
    """Targeting that answers every request with all simulated devices; none has an address."""

    def __init__(self, devices: int) -> None:
        self._devices = devices

    async def Resolve(self, request: ResolveRequest, context: Any) -> ResolveResponse:
        audiences = [BitMap(range(len(range(p, self._devices, PARTITIONS)))) for p in request.partitions]
        return ResolveResponse(
            partitions=[
                PartitionAudience(partition=partition, bitmap=audience.serialize(), count=len(audience))
                for partition, audience in zip(request.partitions, audiences, strict=True)
            ]
        )

    async def FindAddressed(self, request: FindAddressedRequest, context: Any) -> FindAddressedResponse:
        return FindAddressedResponse()

    async def WaitAddressed(self, request: WaitAddressedRequest, context: Any) -> WaitAddressedResponse:
        raise UnavailableError("no device gets an address")

    async def CountValues(self, request: CountValuesRequest, context: Any) -> CountValuesResponse:
        return CountValuesResponse()

    async def CountAudience(self, request: CountAudienceRequest, context: Any) -> CountAudienceResponse:
        return CountAudienceResponse()


async def measure(devices: int, frames_per_s: int, directory: Path) -> None:
    log = SqliteLog(directory / "log.db", TOPICS, partitions=PARTITIONS)
    targeting = LocalServer()
    add_TargetingServiceServicer_to_server(WholeAudience(devices), targeting)  # type: ignore[arg-type]
    nobody = LocalServer().channel()
    peers = Peers({"targeting": [targeting.channel()], "registry": [nobody], "delivery": [nobody]}, TOPICS)
    apps = AppDirectory(log)
    context = RoleContext(log, SystemClock(), peers, MasterKey(bytes(32)).only(ROLE.keys), apps)
    settings = settings_without_vendors(data_dir=str(directory), partitions=PARTITIONS, snapshot_s=100_000)
    role = build(settings, context)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server = serve([address])
    for add in role.servicers:
        add(server)
    await set_pause(log, None)
    async with running_services([apps, *role.services]):
        await server.start()
        command = [sys.executable, "-m", "bench.pause.gateway", address, str(devices), str(frames_per_s)]
        gateway = Program(command, core=1)
        try:
            while (await asyncio.to_thread(gateway.request, "announced"))[0] < devices:
                await asyncio.sleep(_POLL_S)
            await broadcast(log)
            await until_written(gateway, devices // 10)
            began_ns = time.monotonic_ns()
            await set_pause(log, Pause(since_ms=time.time_ns() // 1_000_000))
            before = (await asyncio.to_thread(gateway.request, "pause"))[0]
            stopped, last_ns = await until_quiet(gateway)
            after_s = (last_ns - began_ns) / 1e9
            print(f"{devices:,} devices, {frames_per_s:,} frames/s: paused at {before:,} frames,", flush=True)
            print(f"{stopped - before:,} more were written, the last {after_s:.2f} s after the pause", flush=True)
            await set_pause(log, None)
            await asyncio.to_thread(gateway.request, "resume")
            await until_written(gateway, devices)
            total, _ = await until_quiet(gateway)
            print(f"after the resume {total:,} frames in all" + ("" if total == devices else ": WRONG"))
        finally:
            gateway.process.terminate()
            gateway.process.wait()
            await server.stop(0)
    await log.close()


async def set_pause(log: SqliteLog, pause: Pause | None) -> None:
    fact = AppFact(app=App(appkey=APP, platform=PLATFORM_ANDROID, pause=pause))
    await log.append([NewRecord(APPS.name, 0, APP.encode(), fact.SerializeToString())])


async def broadcast(log: SqliteLog) -> None:
    send = SendPush(
        msgid=1,
        id_count=1,
        appkey=APP,
        platform=PLATFORM_ANDROID,
        kind=KIND_BROADCAST,
        audience=Audience(everyone=Everyone()),
        message=Message(content="x" * 200),
        period_s=86_400,
    )
    command = PushCommand(meta=Meta(event_id=event_id(), time_ms=time.time_ns() // 1_000_000), send=send)
    await log.append([NewRecord(PUSH_COMMANDS.name, 0, b"1", command.SerializeToString())])


async def frames_written(gateway: Program) -> int:
    return (await asyncio.to_thread(gateway.request, "written"))[0]


async def until_written(gateway: Program, frames: int) -> None:
    while await frames_written(gateway) < frames:
        await asyncio.sleep(_POLL_S)


async def until_quiet(gateway: Program) -> tuple[int, int]:
    """Return the frames written and the time of the last one, once none was written for a while."""
    while True:
        frames, last_ns = await asyncio.to_thread(gateway.request, "written")
        if time.monotonic_ns() - last_ns > _QUIET_S * 1e9:
            return frames, last_ns
        await asyncio.sleep(_POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--frames-per-s", type=int, default=20_000, help="the speed of the gateway")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(arguments.devices, arguments.frames_per_s, Path(directory)))


if __name__ == "__main__":
    main()
