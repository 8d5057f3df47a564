"""Fills the data directory of an installation that is not running, through its event log and its roles' own code."""

import asyncio
import contextlib
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.programs import note
from carillon.roles import role_definition
from protos.push.v1.push_pb2 import AndroidStyle, Audience, Devices, Kind, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import Attributes, DeviceCommand, RegisterDevice
from services.delivery.starting.starter import PushStarter
from services.domain.command_writer import Command, CommandWriter, device_command, push_command
from services.domain.ids import new_token
from services.domain.role_context import role_context
from services.domain.topics import TOPICS
from services.registry.store import DEVICES_FILE
from services.runtime.errors import DeadlineError
from services.runtime.process.runner import Service
from services.runtime.process.settings import Settings, load
from services.runtime.rpc.local import LocalServer
from services.runtime.rpc.peers import Peers
from testkit.delivery.message_ids import SoleWriterIds
from testkit.services import add_servicers, started, stop

_ROLES = ("registry", "targeting", "delivery")
_ABSENT = ("scheduling", "analytics")
_AT_ONCE = 5000
_START_S = 600.0
_IDLE_LOOK_S = 0.05
_PERIOD_S = 604_800
_MESSAGE = Message(is_notif=True, content="x" * 60, android=AndroidStyle(title="A title", sound=True))
_BRANDS = ("Acme", "Bolt", "Cima", "Dune", "Echo")
_REGIONS = ("北京市", "上海市", "广东省", "四川省", "河南省")


class Rows:
    """The devices of an app in the registry's file, in the order of their registration."""

    def __init__(self, data: Path, appkey: str) -> None:
        self._path = data / "registry" / DEVICES_FILE
        self._appkey = appkey

    def count(self) -> int:
        ((count,),) = self._select("count(*)", "")
        return int(count)

    def credentials(self, count: int) -> list[tuple[str, int]]:
        """Return the token and the number of the first devices."""
        return self._select("token, number", f"ORDER BY rowid LIMIT {count}")

    def places(self, after: int) -> list[tuple[int, int]]:
        """Return the partition and the number of the devices after the first ones."""
        return self._select("partition, number", f"ORDER BY rowid LIMIT -1 OFFSET {after}")

    def _select(self, columns: str, rest: str) -> list[Any]:
        connection = sqlite3.connect(self._path)
        try:
            query = f"SELECT {columns} FROM devices WHERE appkey = ? {rest}"
            return connection.execute(query, (self._appkey,)).fetchall()
        finally:
            connection.close()


async def fill(env: Mapping[str, str], appkey: str, devices: int, connected: int, targets: int) -> None:
    """Register devices until the app has so many, and send each new one a message that it does not receive.

    The first `connected` devices get none. Each push has `targets` devices.
    """
    settings = load(Settings, env)
    servers = {role: LocalServer() for role in (*_ROLES, *_ABSENT)}
    peers = Peers({role: [server.channel()] for role, server in servers.items()}, TOPICS)
    async with role_context(settings, peers) as context:
        services: list[Service] = []
        for name in _ROLES:
            definition = role_definition(name)
            role = definition.build(load(definition.settings, env), context)
            add_servicers(role, servers[name])
            services += role.services
        tasks = [await started(service, _START_S) for service in services]
        writer = CommandWriter("bench", context.log, peers, context.clock, settings.partitions)
        rows = Rows(settings.data, appkey)
        known = rows.count()
        note(f"{devices - known:,} devices are registered")
        for first in range(known, devices, _AT_ONCE):
            numbers = range(first, min(devices, first + _AT_ONCE))
            await _append(writer, peers, [_registration(appkey, number) for number in numbers])
        places = rows.places(max(known, connected))
        note(f"{len(places):,} messages are sent, {targets:,} a push")
        ids = SoleWriterIds(context.clock)
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            starts = range(0, len(some), targets)
            await _append(writer, peers, [_push(ids, appkey, some[start : start + targets]) for start in starts])
            await _until_started(services)
        await stop(tasks, _START_S)


async def _append(writer: CommandWriter, peers: Peers, commands: Sequence[Command]) -> None:
    """Append the commands; return once they are applied, however long that takes."""
    positions = await writer.append(commands)
    last = {(position.topic, position.partition): position for position in positions}
    while True:
        with contextlib.suppress(DeadlineError):
            return await peers.wait_applied(last.values())


async def _until_started(services: Sequence[Service]) -> None:
    (starter,) = (service for service in services if isinstance(service, PushStarter))
    while not starter.is_idle:
        await asyncio.sleep(_IDLE_LOOK_S)


def _registration(appkey: str, number: int) -> Command:
    attributes = Attributes(
        region=_REGIONS[number % 5], brand=_BRANDS[number // 5 % 5], os_version=str(number % 7), app_version="2.1"
    )
    register = RegisterDevice(platform=PLATFORM_ANDROID, attributes=attributes)
    return device_command(DeviceCommand(appkey=appkey, token=new_token(), register=register))


def _push(ids: SoleWriterIds, appkey: str, places: Sequence[tuple[int, int]]) -> Command:
    count = len(places)
    partitions, numbers = zip(*places, strict=True)
    listed = Devices(
        partitions=struct.pack(f"<{count}H", *partitions),
        numbers=struct.pack(f"<{count}I", *numbers),
        id_offsets=struct.pack(f"<{count}I", *range(count)),
    )
    send = SendPush(
        msgid=ids.take(count),
        id_count=count,
        appkey=appkey,
        platform=PLATFORM_ANDROID,
        kind=Kind.KIND_UNICAST,
        audience=Audience(devices=listed),
        message=_MESSAGE,
        period_s=_PERIOD_S,
    )
    return push_command(PushCommand(send=send))
