"""Devices, explanations and statistics in answers."""

from typing import Annotated

import msgspec

from console.apps.answers import PLATFORMS, TimeMs
from console.audit.answers import Behind, DeviceAudit, Next, PushOnDevice
from edge.core.parsing.fields import described
from protos.registry.v1.devices_pb2 import Device as StoredDevice

_Alias = Annotated[str | None, described("Its alias, or null.")]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device. A removed one is kept without its connection."""

    appkey: Annotated[str, described("The app.")]
    token: Annotated[str, described("The token.")]
    platform: Annotated[str, described("android or ios.")]
    registered_ms: TimeMs
    alias: _Alias
    tags: Annotated[list[int], described("Its numeric tags.")]
    stags: Annotated[list[str], described("Its string tags.")]
    attributes: Annotated[dict[str, str], described("Its attributes, such as region; those that it has reported.")]
    removed_ms: Annotated[int | None, described("When it was removed; null: it is registered.")]
    removed_reason: Annotated[str, described("Why it was removed.")]


class DeviceList(msgspec.Struct, frozen=True):
    """The device with a token, or those with an alias, the most recently active first."""

    devices: Annotated[list[Device], described("The devices.")]


class PushDevice(msgspec.Struct, frozen=True):
    """A device of a push."""

    msgid: Annotated[int, described("The message id that the push has for the device.")]
    token: Annotated[str, described("The device; empty while its record is not in the store.")]


class PushDevices(msgspec.Struct, frozen=True):
    """A page of the devices of a push in one state."""

    devices: Annotated[list[PushDevice], described("The devices.")]
    next: Next
    records_behind: Behind


class DeviceMessage(msgspec.Struct, frozen=True):
    """What became of one message on a device."""

    msgid: Annotated[int, described("The message id.")]
    event: Annotated[str, described("The latest event, such as received.")]
    time_ms: TimeMs
    is_waiting: Annotated[bool, described("Whether the device still waits for it.")]
    title: Annotated[str, described("The title of the push, or else the beginning of its text; empty if not known.")]


class DeviceHistory(DeviceAudit, frozen=True, kw_only=True):
    """What happened to a device, and its messages."""

    messages: Annotated[list[DeviceMessage], described("Its messages, the newest first.")]


class DeviceAnswer(msgspec.Struct, frozen=True):
    """Why one device got a push or not."""

    token: Annotated[str, described("The device.")]
    alias: _Alias
    sentence: Annotated[str, described("The answer in one sentence.")]
    kind: Annotated[str, described("good: it got the push; bad: it will not; warn: it may still.")]
    push: Annotated[PushOnDevice, described("The records behind it.")]


class WhyAnswer(msgspec.Struct, frozen=True):
    """Why the devices of a user got a push or not."""

    msgid: Annotated[int, described("The push.")]
    title: Annotated[str, described("Its title, if it has one.")]
    text: Annotated[str, described("Its content.")]
    devices: Annotated[list[DeviceAnswer], described("The answer for each device.")]
    records_behind: Behind


class StatisticsRow(msgspec.Struct, frozen=True):
    """The numbers of a day, of a value of the category, or of a push."""

    date: Annotated[str, described("The day; empty for the whole period.")]
    info: Annotated[str | None, described("The value of the category; null without one.")]
    msgid: Annotated[int | None, described("The push; null for none.")]
    counts: Annotated[dict[str, float], described("The numbers by their names.")]


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of an app."""

    kind: Annotated[str, described("The type.")]
    rows: Annotated[list[StatisticsRow], described("The rows.")]


def device_record(device: StoredDevice) -> Device:
    found = {field.name: value for field, value in device.attributes.ListFields()}
    return Device(
        appkey=device.appkey,
        token=device.token,
        platform=PLATFORMS[device.platform],
        registered_ms=device.registered_ms,
        alias=device.alias or None,
        tags=list(device.tags),
        stags=list(device.stags),
        attributes=found,
        removed_ms=device.removed_ms or None,
        removed_reason=device.removed_reason,
    )
