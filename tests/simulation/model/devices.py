"""A reference model of devices: applies the commands in the log to them, one after the other."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from protos.registry.v1.devices_pb2 import ClearAddress, DeviceCommand
from services.domain.addresses import address_hash

Name = tuple[str, str]
"""Appkey and token."""


Held = tuple[str, int]
"""An address of a device, and the time since which it has it."""


@dataclass
class ModelDevice:
    """The properties of a device by which pushes select it and senders reach it.

    `addresses` by channel; `were_set` are all that it ever had, `taken` those that the registry gave to another device.
    """

    alias: str | None = None
    alias_proven: bool = False
    stags: set[str] = field(default_factory=set)
    addresses: dict[int, Held] = field(default_factory=dict)
    were_set: set[tuple[int, Held]] = field(default_factory=set)
    taken: set[tuple[int, Held]] = field(default_factory=set)


def folded(commands: Iterable[DeviceCommand]) -> dict[Name, ModelDevice]:
    """Return the devices after these commands, of which those of one device are in the order of the log.

    A repeated command counts once. Of one record the registry may command two devices, one after the other with the
    same event id, where it was restarted in between and has read the partitions of `devices` in another order since.
    """
    devices: dict[Name, ModelDevice] = {}
    seen: set[tuple[str, str, bytes]] = set()
    for command in commands:
        repeated = command.appkey, command.token, command.meta.event_id
        if repeated not in seen:
            seen.add(repeated)
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
        case "set_address":
            channel, address = command.set_address.channel, command.set_address.address
            if device.addresses.get(channel, ("", 0))[0] != address:
                device.addresses[channel] = address, command.meta.time_ms
                device.were_set.add((channel, device.addresses[channel]))
        case "clear_address":
            _clear_address(device, command.clear_address)


def _clear_address(device: ModelDevice, clear: ClearAddress) -> None:
    held = device.addresses.get(clear.channel)
    if held is None or (clear.only_hash and clear.only_hash != address_hash(clear.channel, held[0])):
        return
    if clear.known_before_ms and held[1] >= clear.known_before_ms:
        return
    del device.addresses[clear.channel]
    if clear.to_token:
        device.taken.add((clear.channel, held))


def wrongly_taken(commands: Iterable[DeviceCommand]) -> Iterator[str]:
    """Yield the addresses that the registry took from a device although no other device of the app set them later."""
    devices = folded(commands)
    latest: dict[tuple[str, int, str], tuple[int, str]] = defaultdict(lambda: (0, ""))
    for (appkey, token), device in devices.items():
        for channel, (address, since_ms) in device.were_set:
            key = appkey, channel, address
            latest[key] = max(latest[key], (since_ms, token))
    for (appkey, token), device in sorted(devices.items()):
        for channel, (address, since_ms) in sorted(device.taken):
            if latest[appkey, channel, address] == (since_ms, token):
                yield f"device {token} of {appkey} lost {address} on channel {channel}, which none set later"
