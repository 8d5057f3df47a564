"""The process that bench.edge measures: the v2 interface, or its floor, which reads a request and answers."""

import argparse
import asyncio
import json
from typing import Any

import uvloop

import edge.interfaces
import edge.settings
import services.registry.main
import services.registry.settings
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice
from protos.registry.v1.registry_pb2 import CreateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import AwaitRequest, Meta, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from services.domain.ids import event_id, new_token
from services.domain.master_key import create_master
from services.domain.role import RoleContext
from services.domain.role_context import connected_peers, role_context
from services.domain.settings import environment, load
from services.domain.topics import DEVICE_COMMANDS, TOPICS, device_key
from services.log.port import NewRecord
from services.log.topics import partition_of
from services.net.http.server import HttpListener
from services.net.rpc.local import LocalServer
from services.process import memory
from services.process.logs import configure
from services.replica.peers import Peers
from testkit.services import add_servicers, started

ROLES = ("registry", "targeting", "scheduling", "delivery", "analytics")


async def floor(scope: Any, receive: Any, send: Any) -> None:
    """The floor: an application that reads the request and answers."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    answer = b'{"result":0,"desc":"send ok","id":5523479825186816}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def serve(devices: int) -> None:
    settings = load(edge.settings.EdgeSettings, {**environment(), "CARILLON_V2_PORT": "0"})
    local = settings.kafka_bootstrap is None
    servers = {name: LocalServer() for name in ROLES}
    peers = (
        Peers({name: [server.channel()] for name, server in servers.items()}, TOPICS)
        if local
        else connected_peers(environment(), None)
    )
    create_master(settings.key_file)
    async with role_context(settings, peers) as context:
        running = []
        if local:
            role = services.registry.main.build(
                load(services.registry.settings.RegistrySettings, environment()), context
            )
            add_servicers(role, servers["registry"])
            running = [await started(service) for service in role.services]
        app, secret = await made_app(context)
        tokens = await registered(context, app, devices, settings.partitions)
        interfaces = edge.interfaces.Interfaces(settings, context)
        listener = HttpListener("v2", interfaces.v2, "127.0.0.1", 0)
        running.append(await started(listener))
        memory.freeze_startup_objects()
        print(json.dumps({"port": listener.port, "appkey": app.appkey, "secret": secret, "tokens": tokens}), flush=True)
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


async def made_app(context: RoleContext) -> tuple[App, str]:
    registry = RegistryServiceStub(context.peers.all("registry")[0])
    made = await registry.CreateApp(CreateAppRequest(platform=PLATFORM_ANDROID, name="b", package="b.b"))
    return made.app, made.secret_key


async def registered(context: RoleContext, app: App, count: int, partitions: int) -> list[str]:
    """Register devices; return their tokens once the registry has applied them."""
    tokens = [new_token() for _ in range(count)]
    new_records = []
    for token in tokens:
        meta = Meta(event_id=event_id(), time_ms=context.clock.now_ms(), writer="bench")
        command = DeviceCommand(
            meta=meta, appkey=app.appkey, token=token, register=RegisterDevice(platform=PLATFORM_ANDROID)
        )
        key = device_key(app.appkey, token)
        new_records.append(
            NewRecord(DEVICE_COMMANDS.name, partition_of(key, partitions), key, command.SerializeToString())
        )
    offsets = await context.log.append(new_records)
    last = {new_record.partition: offset for new_record, offset in zip(new_records, offsets, strict=True)}
    for partition, offset in last.items():
        position = Position(topic=DEVICE_COMMANDS.name, partition=partition, offset=offset)
        registry = PositionsServiceStub(context.peers.owner("registry", partition))
        await registry.Await(AwaitRequest(positions=[position]))
    return tokens


async def serve_floor() -> None:
    listener = HttpListener("floor", floor, "127.0.0.1", 0)
    running = await started(listener)
    print(json.dumps({"port": listener.port}), flush=True)
    await running


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--devices", type=int, default=2000)
    options = parser.parse_args()
    configure("WARNING")
    uvloop.run(serve_floor() if options.floor else serve(options.devices))
