"""Makes the records that the roles would have written for devices that register and pushes that start."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from protos.push.v1.push_pb2 import AndroidStyle, Audience, Devices, Kind, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import Attributes, DeviceCommand, DeviceFact, RegisterDevice
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.decide import start
from services.delivery.state.pushes import requested_push
from services.domain.ids import EventIds, RecordStamp
from services.domain.topics import DEVICE_COMMANDS, DEVICES, PUSH_COMMANDS, PUSHES, device_key
from services.log.port import NewRecord
from services.log.topics import partition_of
from services.registry.decide import FreeNumber, decide
from testkit.delivery.message_ids import SoleWriterIds

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


_EDGE, _DELIVERY = RecordStamp("edge"), RecordStamp("delivery")


@dataclass(frozen=True, slots=True)
class DeviceColumns:
    """Partitions and device numbers of devices, as columns of equal length."""

    partitions: npt.NDArray[np.uint16]
    numbers: npt.NDArray[np.uint32]

    @classmethod
    def joined(cls, parts: Sequence["DeviceColumns"]) -> "DeviceColumns":
        partitions = np.concatenate([np.zeros(0, np.uint16), *(part.partitions for part in parts)])
        return cls(partitions, np.concatenate([np.zeros(0, np.uint32), *(part.numbers for part in parts)]))

    def __len__(self) -> int:
        return len(self.numbers)

    def from_number(self, first: int) -> "DeviceColumns":
        """Return the devices whose number is at least `first`."""
        chosen = self.numbers >= first
        return DeviceColumns(self.partitions[chosen], self.numbers[chosen])

    def parts(self, length: int) -> Iterable["DeviceColumns"]:
        """Yield parts of this length; the last may be shorter."""
        for at in range(0, len(self), length):
            yield DeviceColumns(self.partitions[at : at + length], self.numbers[at : at + length])


class Registrations:
    """Makes the commands of devices that register, and the facts that the registry decides on them.

    A command and its fact are made, and decided, once for all devices with the same attributes. Then token, partition,
    number, cause, event ids and time are set for each device.
    """

    def __init__(self, app: App, partitions: int, next_numbers: dict[int, int], epochs: Mapping[int, int]) -> None:
        """`next_numbers`: the next free device number by partition. `epochs`: those of the registry's latest owner."""
        self._partitions = partitions
        self._epochs = epochs
        self._next_numbers = next_numbers
        self._samples = [_Sample(app, register) for register in _REGISTRATIONS]
        self._event_ids = EventIds()

    def commands(self, tokens: Sequence[str], now_ms: int) -> list[NewRecord]:
        """Return the commands by which these devices register."""
        new_records = []
        for sample, token in zip(cycle(self._samples), tokens, strict=False):
            key = device_key(sample.appkey, token)
            value = sample.command(token, self._event_ids.take(), now_ms)
            new_records.append(NewRecord(DEVICE_COMMANDS.name, partition_of(key, self._partitions), key, value))
        return new_records

    def facts(
        self, tokens: Sequence[str], now_ms: int, commands: Sequence[NewRecord], offsets: Sequence[int]
    ) -> tuple[DeviceColumns, list[NewRecord]]:
        """Return the new devices, and the registry's records that follow from the commands at these offsets."""
        new_records, numbers = [], []
        for sample, token, command, offset in zip(cycle(self._samples), tokens, commands, offsets, strict=False):
            number = self._next_numbers.get(command.partition, 0)
            self._next_numbers[command.partition] = number + 1
            numbers.append(number)
            sample.set_epoch(self._epochs.get(command.partition, 0))
            value = sample.fact(token, command.partition, number, offset, now_ms)
            new_records.append(NewRecord(DEVICES.name, command.partition, command.key, value))
        partitions = np.array([command.partition for command in commands], np.uint16)
        return DeviceColumns(partitions, np.array(numbers, np.uint32)), new_records


class _Sample:
    """The command that registers a device with certain attributes, and the fact that the registry decides on it."""

    def __init__(self, app: App, register: RegisterDevice) -> None:
        self.appkey = app.appkey
        self._command = DeviceCommand(meta=Meta(writer="gateway"), appkey=app.appkey, register=register)
        device = decide(self._command, None, app, FreeNumber(0, 0))
        assert device is not None
        meta = Meta(writer="registry", cause=Position(topic=DEVICE_COMMANDS.name))
        self._fact = DeviceFact(meta=meta, device=device)

    def command(self, token: str, event_id: bytes, now_ms: int) -> bytes:
        """Return the command of the device with this token."""
        command = self._command
        command.token, command.meta.event_id, command.meta.time_ms = token, event_id, now_ms
        return command.SerializeToString()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the facts to come."""
        self._fact.meta.epoch = epoch

    def fact(self, token: str, partition: int, number: int, offset: int, now_ms: int) -> bytes:
        """Return the fact that follows from the command at this offset."""
        meta, device = self._fact.meta, self._fact.device
        identity = f"{DEVICE_COMMANDS.name}/{partition}/{offset}/0".encode()
        meta.event_id, meta.time_ms = hashlib.blake2b(identity, digest_size=16).digest(), now_ms
        meta.cause.partition, meta.cause.offset = partition, offset
        device.token, device.partition, device.number, device.registered_ms = token, partition, number, now_ms
        return self._fact.SerializeToString()


def push(ids: SoleWriterIds, appkey: str, columns: DeviceColumns, now_ms: int) -> PushCommand:
    """Return the command of a push to these devices."""
    count = len(columns)
    listed = Devices(
        partitions=columns.partitions.astype("<u2").tobytes(),
        numbers=columns.numbers.astype("<u4").tobytes(),
        id_offsets=np.arange(count, dtype="<u4").tobytes(),
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
    requested = requested_push(command, offset, frozenset(range(partitions)))
    audiences = {partition: BitMap(requested.targets(partition)) for partition in requested.remaining}
    new_records = []
    for fact in start(requested, audiences):
        _DELIVERY.complete(fact.meta, command.meta.time_ms)
        new_records.append(NewRecord(PUSHES.name, fact.partition, str(fact.msgid).encode(), fact.SerializeToString()))
    return new_records
