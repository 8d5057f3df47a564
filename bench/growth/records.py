"""The records that the roles would have written: devices that registered, and pushes that started for some of them."""

import hashlib
import struct
from collections.abc import Sequence

from pyroaring import BitMap

from protos.push.v1.push_pb2 import AndroidStyle, Audience, Devices, Kind, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import Attributes, DeviceCommand, RegisterDevice
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.decide import start
from services.delivery.state.pushes import requested_push
from services.domain.meta import RecordStamp
from services.domain.topics import DEVICE_COMMANDS, PUSH_COMMANDS, PUSHES, device_key
from services.registry.decide import FreeNumber, decide
from services.registry.rules import device_fact
from services.runtime.log.port import NewRecord
from services.runtime.log.topics import partition_of
from testkit.delivery.message_ids import SoleWriterIds

Place = tuple[int, int]
"""Partition and number of a device."""

_PERIOD_S = 604_800
_MESSAGE = Message(is_notif=True, content="x" * 60, android=AndroidStyle(title="A title", sound=True))
_BRANDS = ("Acme", "Bolt", "Cima", "Dune", "Echo")
_REGIONS = ("北京市", "上海市", "广东省", "四川省", "河南省")
_REGISTRATIONS = [
    RegisterDevice(
        platform=PLATFORM_ANDROID,
        attributes=Attributes(region=region, brand=brand, os_version=str(version), app_version="2.1"),
    )
    for version in range(7)
    for brand in _BRANDS
    for region in _REGIONS
]


_GATEWAY, _EDGE, _DELIVERY = RecordStamp("gateway"), RecordStamp("edge"), RecordStamp("delivery")


class Registrations:
    """Makes the commands of devices that register, and the facts that the registry decides on them."""

    def __init__(self, app: App, partitions: int, next_numbers: dict[int, int]) -> None:
        """`next_numbers`: the next free device number by partition."""
        self._app = app
        self._partitions = partitions
        self._next_numbers = next_numbers
        self._count = 0

    def commands(self, tokens: Sequence[str], now_ms: int) -> tuple[list[DeviceCommand], list[NewRecord]]:
        """Return the commands by which these devices register, and their records."""
        commands, new_records = [], []
        for token in tokens:
            register = _REGISTRATIONS[self._count % len(_REGISTRATIONS)]
            self._count += 1
            command = DeviceCommand(appkey=self._app.appkey, token=token, register=register)
            _GATEWAY.complete(command.meta, now_ms)
            key = device_key(command.appkey, token)
            partition = partition_of(key, self._partitions)
            commands.append(command)
            new_records.append(NewRecord(DEVICE_COMMANDS.name, partition, key, command.SerializeToString()))
        return commands, new_records

    def facts(
        self, commands: Sequence[DeviceCommand], records: Sequence[NewRecord], offsets: Sequence[int]
    ) -> tuple[list[Place], list[NewRecord]]:
        """Return the places of the devices, and the registry's records on the commands at these offsets."""
        places, new_records = [], []
        for command, record, offset in zip(commands, records, offsets, strict=True):
            number = self._next_numbers.get(record.partition, 0)
            self._next_numbers[record.partition] = number + 1
            device = decide(command, None, self._app, FreeNumber(record.partition, number))
            assert device is not None
            fact = device_fact(device)
            fact.message.meta.CopyFrom(
                Meta(
                    event_id=hashlib.blake2b(command.meta.event_id, digest_size=16).digest(),
                    time_ms=command.meta.time_ms,
                    writer="registry",
                    cause=Position(topic=record.topic, partition=record.partition, offset=offset),
                )
            )
            places.append((record.partition, number))
            new_records.append(NewRecord(fact.topic.name, fact.partition, fact.key, fact.message.SerializeToString()))
        return places, new_records


def push(ids: SoleWriterIds, appkey: str, places: Sequence[Place], now_ms: int) -> PushCommand:
    """Return the command of a push to these devices."""
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
    command = PushCommand(send=send)
    _EDGE.complete(command.meta, now_ms)
    return command


def push_record(command: PushCommand) -> NewRecord:
    return NewRecord(PUSH_COMMANDS.name, 0, str(command.send.msgid).encode(), command.SerializeToString())


def starts(command: PushCommand, offset: int, partitions: int) -> list[NewRecord]:
    """Return delivery's records on the start of the push whose command is at this offset."""
    requested = requested_push(command.send, offset, command.meta.time_ms, frozenset(range(partitions)))
    audiences = {partition: BitMap(requested.targets(partition)) for partition in requested.remaining}
    new_records = []
    for fact in start(requested, audiences):
        _DELIVERY.complete(fact.meta, command.meta.time_ms)
        new_records.append(NewRecord(PUSHES.name, fact.partition, str(fact.msgid).encode(), fact.SerializeToString()))
    return new_records
