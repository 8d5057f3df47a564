"""Details, the parts of an audit entry's line, that several audits have, and their form in the store."""

from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import assert_never

from analytics.store.columns import ATTRIBUTES, enum_number
from protos.analytics.v1.details_pb2 import (
    AddressChange,
    AliasCleared,
    AliasTakenAway,
    AttributeValue,
    CommandOrigin,
    Detail,
    Details,
    Remark,
    ServiceChannel,
    StagChange,
    TagChange,
)
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import CHANNEL_UNSPECIFIED, Platform
from protos.registry.v1.devices_pb2 import Attributes, ClearAddress, ClearAlias, DeviceCommand, SetAddress
from services.domain.addresses import CHANNELS, address_hash, fingerprint


def texts(*values: str) -> list[Detail]:
    """Return a part for each value that is not empty: a name, an id, a setting or a text that a person wrote."""
    return [Detail(text=value) for value in values if value]


def reasons(recorded: str) -> list[Detail]:
    """Return the reason that something was recorded with; nothing if it has none."""
    return [Detail(reason=recorded)] if recorded else []


def channels(name: str, devices: int = 0, *, simulated: bool = False) -> list[Detail]:
    """Return the channel that was asked or answered, and for how many devices; nothing if it has no name."""
    channel = ServiceChannel(channel=name, devices=devices, simulated=simulated)
    return [Detail(channel=channel)] if name else []


def origins(writer: str, interface: str, address: str, request_id: str) -> list[Detail]:
    """Return where a command came from; nothing if that is not known."""
    origin = command_origin(writer, interface, address, request_id)
    return [Detail(origin=origin)] if origin.ByteSize() else []


def command_origin(writer: str, interface: str, address: str, request_id: str) -> CommandOrigin:
    """Return a command's interface, address and request; without an interface, the role that wrote it."""
    if interface:
        return CommandOrigin(interface=interface, address=address, request_id=request_id)
    return CommandOrigin(writer=writer)


def push_kind(stored: str) -> Detail:
    """Return the kind of a push by its name in the store."""
    return Detail(push_kind=Kind.ValueType(enum_number(Kind.DESCRIPTOR, stored, "KIND_")))


def platform(stored: str) -> Detail:
    """Return the platform of a device by its name in the store."""
    return Detail(platform=Platform.ValueType(enum_number(Platform.DESCRIPTOR, stored, "PLATFORM_")))


def stored_details(details: Iterable[Detail]) -> bytes:
    """Return the parts as the store keeps them."""
    return Details(details=details).SerializeToString(deterministic=True)


def read_details(stored_base64: str) -> Sequence[Detail]:
    """Return the stored parts."""
    return Details.FromString(b64decode(stored_base64)).details


# Commands to devices as details of audits: their names, and the changes that they ask for.

DESCRIPTION = ("model", *ATTRIBUTES)
"""The attributes of a device and its model, in the order of audits."""


def command_name(command: DeviceCommand) -> str:
    """Return for example `add tags`; "" for a command that only a newer writer knows."""
    return (command.WhichOneof("command") or "").replace("_", " ")


def requested_details(command: DeviceCommand) -> list[Detail]:
    """Return the requested change, for example the added tags."""
    match command.WhichOneof("command"):
        case "register":
            register = command.register
            return [Detail(platform=register.platform), *_attributes(register.attributes)]
        case "set_alias":
            return [Detail(alias=command.set_alias.alias), *_proven(command.set_alias.proven)]
        case "clear_alias":
            only = command.clear_alias
            cleared = AliasCleared(only_alias=only.only_alias if only.HasField("only_alias") else None)
            return [Detail(alias_cleared=cleared), *_taken(only)]
        case "add_tags":
            return [*tags(command.add_tags.tags), *_proven(command.add_tags.proven)]
        case "remove_tags":
            return tags(command.remove_tags.tags, removed=True)
        case "add_stags":
            return [*stags(command.add_stags.stags), *_proven(command.add_stags.proven)]
        case "remove_stags":
            return stags(command.remove_stags.stags, removed=True)
        case "set_attributes":
            return _attributes(command.set_attributes.attributes)
        case "remove":
            return reasons(command.remove.reason)
        case "set_address":
            return _set_address(command.set_address)
        case "clear_address":
            return _clear_address(command.clear_address)
        case "revoke_key":
            return [Detail(remark=Remark.REMARK_KEY_OF_DEVICE)]
        case "revoke_all_keys":
            return [Detail(remark=Remark.REMARK_ALL_KEYS)]
        case "reserve_numbers":
            return [Detail(device_numbers=command.reserve_numbers.count)]
        case "begin_session" | None:
            return []
        case never:
            assert_never(never)


def tags(values: Iterable[int], *, removed: bool = False) -> list[Detail]:
    """Return a part for each tag that a device gets or, `removed`, loses."""
    return [Detail(tag=TagChange(tag=tag, removed=removed)) for tag in sorted(values)]


def stags(values: Iterable[str], *, removed: bool = False) -> list[Detail]:
    """Return a part for each string tag that a device gets or, `removed`, loses."""
    return [Detail(stag=StagChange(stag=stag, removed=removed)) for stag in sorted(values)]


def addresses(named: Iterable[str], *, removed: bool = False) -> list[Detail]:
    """Return a part for each address that a device gets or, `removed`, loses; given as the store names them."""
    changes = []
    for each in sorted(named):
        channel, _, known_by = each.partition(" ")
        number = CHANNELS.get(channel, CHANNEL_UNSPECIFIED)
        changes.append(AddressChange(channel=number, fingerprint=known_by, removed=removed))
    return [Detail(address=change) for change in changes]


def _set_address(change: SetAddress) -> list[Detail]:
    known_by = fingerprint(address_hash(change.channel, change.address))
    return [Detail(address=AddressChange(channel=change.channel, fingerprint=known_by))]


def _clear_address(clear: ClearAddress) -> list[Detail]:
    cleared = AddressChange(channel=clear.channel, fingerprint=fingerprint(clear.only_hash), removed=True)
    taken = [Detail(address_taken=clear.to_token)] if clear.to_token else []
    return [Detail(address=cleared), *reasons(clear.dead_reason), *taken]


def _proven(what: object) -> list[Detail]:
    """Return the remark that a change is proven, if `what`, a flag or the proven tags, says so."""
    return [Detail(remark=Remark.REMARK_PROVEN)] if what else []


def _taken(clear: ClearAlias) -> list[Detail]:
    """Return the device that took the alias, if one did."""
    if not clear.HasField("taken"):
        return []
    return [Detail(alias_taken=AliasTakenAway(token=clear.taken.token, proven=clear.taken.proven))]


def _attributes(attributes: Attributes) -> list[Detail]:
    """Return a part for each attribute that is set."""
    return [
        Detail(attribute=AttributeValue(name=name, value=value))
        for name in DESCRIPTION
        if (value := getattr(attributes, name))
    ]
