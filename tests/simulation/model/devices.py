"""A reference model of devices: applies the commands in the log to them, one after the other."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from protos.registry.v1.devices_pb2 import DeviceCommand

Name = tuple[str, str]
"""Appkey and token."""


@dataclass
class ModelDevice:
    """The properties of a device by which pushes select it."""

    alias: str | None = None
    alias_proven: bool = False
    stags: set[str] = field(default_factory=set)


def folded(commands: Iterable[DeviceCommand]) -> dict[Name, ModelDevice]:
    """Return the devices after these commands, of which those of one device are in the order of the log.

    A repeated command counts once.
    """
    devices: dict[Name, ModelDevice] = {}
    seen: set[bytes] = set()
    for command in commands:
        if command.meta.event_id not in seen:
            seen.add(command.meta.event_id)
            _fold(devices, command)
    return devices


def _fold(devices: dict[Name, ModelDevice], command: DeviceCommand) -> None:
    name = command.appkey, command.token
    if command.HasField("register"):
        devices.setdefault(name, ModelDevice())
    if (device := devices.get(name)) is None:
        return
    match command.WhichOneof("command"):
        case "add_stags":
            device.stags |= set(command.add_stags.stags)
        case "remove_stags":
            device.stags -= set(command.remove_stags.stags)
        case "set_alias":
            kept = device.alias_proven and command.set_alias.alias == device.alias
            device.alias, device.alias_proven = command.set_alias.alias, command.set_alias.proven or kept
        case "clear_alias":
            only = command.clear_alias
            is_meant = not only.HasField("only_alias") or only.only_alias == device.alias
            if is_meant and not (only.only_unproven and device.alias_proven):
                device.alias, device.alias_proven = None, False
