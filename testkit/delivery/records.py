"""Audiences, devices and outcomes as tests of delivery write and read them."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind
from protos.push.v1.push_pb2 import Audience, Devices, Filter, StagGroup
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, Channel
from protos.registry.v1.devices_pb2 import Address, Device, DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.ids import event_id
from services.domain.topics import DEVICES, decode, device_key
from services.log.port import NewRecord, Record

START_MS = 1_800_000_000_000
PARTITIONS = 2
APP = "1000000001"
OTHER_APP = "1000000002"
RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED
SENT = OutcomeKind.OUTCOME_KIND_SENT
SHOWN = OutcomeKind.OUTCOME_KIND_SHOWN
CLICKED = OutcomeKind.OUTCOME_KIND_CLICKED
FAILED = OutcomeKind.OUTCOME_KIND_FAILED
DROPPED = OutcomeKind.OUTCOME_KIND_DROPPED
EXPIRED = OutcomeKind.OUTCOME_KIND_EXPIRED


class NumberedDevice(NamedTuple):
    """A device of the test's app by partition and device number."""

    partition: int
    number: int


class OutcomeRow(NamedTuple):
    """One outcome in the log."""

    msgid: int
    device: NumberedDevice
    kind: int
    reason: str = ""


def listed_audience(*devices: NumberedDevice, own_ids: bool = False) -> Audience:
    """Return the audience of a list; with `own_ids` each entry has its own message id, as in a token list."""
    count = len(devices)
    return Audience(
        devices=Devices(
            partitions=struct.pack(f"<{count}H", *(device.partition for device in devices)),
            numbers=struct.pack(f"<{count}I", *(device.number for device in devices)),
            id_offsets=struct.pack(f"<{count}I", *(range(count) if own_ids else [0] * count)),
        )
    )


def aliased_audience(*devices: NumberedDevice, aliases: Sequence[str]) -> Audience:
    """Return the audience of a push to aliases; the n-th device was found by the n-th alias, or all by a single one."""
    audience = listed_audience(*devices)
    names = list(dict.fromkeys(aliases))
    audience.devices.aliases.extend(names)
    if len(names) > 1:
        audience.devices.alias_indexes = struct.pack(f"<{len(aliases)}H", *map(names.index, aliases))
    return audience


def stag_audience(stag: str) -> Audience:
    """Return the audience of all devices with a string tag."""
    return Audience(filter=Filter(stags=[StagGroup(stags=[stag])]))


def device_record(
    device: NumberedDevice, appkey: str, stag: str | None, channels: Sequence["Channel.ValueType"] = ()
) -> NewRecord:
    """Return the registry's record of an Android device with an address on each of these channels."""
    token = f"token-{device.partition}-{device.number}"
    registered = Device(
        appkey=appkey,
        token=token,
        platform=PLATFORM_ANDROID,
        partition=device.partition,
        number=device.number,
        registered_ms=START_MS,
        stags=[stag] if stag else [],
        addresses=[Address(channel=channel, address=f"{token} on {channel}", since_ms=1) for channel in channels],
    )
    fact = DeviceFact(meta=Meta(event_id=event_id(), time_ms=START_MS, writer="registry"), device=registered)
    return NewRecord(DEVICES.name, device.partition, device_key(appkey, token), fact.SerializeToString())


def outcome_rows(record: Record) -> list[OutcomeRow]:
    """Return the outcomes in a record of `deliveries`."""
    return [row for columns in decode(record).outcomes.apps for row in _rows(record.partition, columns)]


def _rows(partition: int, columns: AppOutcomes) -> list[OutcomeRow]:
    count = len(columns.kinds)
    return [
        OutcomeRow(msgid, NumberedDevice(partition, number), kind, columns.reasons[reason - 1] if reason else "")
        for msgid, number, kind, reason, _ in zip(
            struct.unpack(f"<{count}Q", columns.msgids),
            struct.unpack(f"<{count}I", columns.numbers),
            columns.kinds,
            columns.reason_indexes,
            struct.unpack(f"<{count}q", columns.times_ms),
            strict=True,
        )
    ]
