"""What follows from a device command: the device's next record, or nothing. Pure."""

from typing import NamedTuple, assert_never

from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.devices_pb2 import Attributes, Device, DeviceCommand, RemoveDevice
from services.registry.carriers import carrier_code
from services.registry.store import UNREGISTERED

MAX_DEVICE_BYTES = 256 * 1024
"""A command that would make a device's record larger is left out: the log could not carry the record."""


class Place(NamedTuple):
    """Where a device that is not known yet will stand: its partition and the next free number there."""

    partition: int
    number: int


def decide(
    command: DeviceCommand, device: Device | None, app: App | None, free: Place, *, is_revoked: bool = False
) -> Device | None:
    """The device as the command leaves it; None where nothing changes, or app or device are unknown.

    Moments are the command's own, so that the same command always gives the same record. `is_revoked`: the key that
    carries the device's number is refused.
    """
    if app is None:
        return None
    changed = Device()
    if command.WhichOneof("command") == "register":
        if command.register.platform != app.platform:
            return None
        changed = _made(command, free, device) if device is None or is_revoked else _registered(command, device)
        _report(changed, command.register.attributes)
    elif device is None or device.removed_ms or is_revoked:
        return None
    else:
        changed.CopyFrom(device)
        _change(changed, command)
    return None if changed == device or changed.ByteSize() > MAX_DEVICE_BYTES else changed


def _made(command: DeviceCommand, free: Place, former: Device | None) -> Device:
    """A new device; where its key was revoked, nothing is kept of the one that had the token before but its numbers."""
    return Device(
        appkey=command.appkey,
        token=command.token,
        platform=command.register.platform,
        partition=free.partition,
        number=free.number,
        registered_ms=command.meta.time_ms,
        former_numbers=[*former.former_numbers, former.number] if former else [],
    )


def _registered(command: DeviceCommand, device: Device) -> Device:
    """A known device, or a removed one brought back under its number."""
    changed = Device()
    changed.CopyFrom(device)
    if device.removed_ms:
        changed.registered_ms = command.meta.time_ms
        changed.ClearField("removed_ms")
        changed.ClearField("removed_reason")
    return changed


def _change(device: Device, command: DeviceCommand) -> None:
    match command.WhichOneof("command"):
        case "set_alias":
            _set_alias(device, command.set_alias.alias, command.meta.time_ms)
        case "clear_alias":
            only = command.clear_alias
            if not only.HasField("only_alias") or only.only_alias == device.alias:
                device.ClearField("alias")
                device.ClearField("alias_set_ms")
        case "add_tags":
            device.tags[:] = sorted({*device.tags, *command.add_tags.tags})
        case "remove_tags":
            device.tags[:] = sorted({*device.tags}.difference(command.remove_tags.tags))
        case "add_stags":
            device.stags[:] = sorted({*device.stags, *command.add_stags.stags})
        case "remove_stags":
            device.stags[:] = sorted({*device.stags}.difference(command.remove_stags.stags))
        case "set_attributes":
            _report(device, command.set_attributes.attributes)
        case "remove":
            _remove(device, command.remove, command.meta.time_ms)
        case "register" | "revoke_key" | "revoke_all_keys" | None:
            pass
        case unexpected:
            assert_never(unexpected)


def _set_alias(device: Device, alias: str, moment_ms: int) -> None:
    if alias and alias != device.alias:
        device.alias = alias
        device.alias_set_ms = moment_ms


def _remove(device: Device, remove: RemoveDevice, moment_ms: int) -> None:
    if not remove.registered_before_ms or device.registered_ms < remove.registered_before_ms:
        device.removed_ms = max(moment_ms, 1)
        device.removed_reason = remove.reason or UNREGISTERED


def _report(device: Device, attributes: Attributes) -> None:
    """Take what was reported; what is empty stays as it was known."""
    reported = Attributes()
    reported.CopyFrom(attributes)
    reported.carrier = carrier_code(attributes.carrier)
    device.attributes.MergeFrom(reported)
