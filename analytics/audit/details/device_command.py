"""What a command to a device asks for, as parts of a line in audits."""

from collections.abc import Iterable
from typing import assert_never

from analytics.audit.details.parts import reasons
from analytics.store.columns import ATTRIBUTES
from protos.analytics.v1.details_pb2 import (
    AliasCleared,
    AliasTakenAway,
    AttributeValue,
    Detail,
    Remark,
    StagChange,
    TagChange,
)
from protos.registry.v1.devices_pb2 import Attributes, ClearAlias, DeviceCommand

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


def _proven(what: object) -> list[Detail]:
    """Return the remark that a change is proven, if something of it is."""
    return [Detail(remark=Remark.REMARK_PROVEN)] if what else []


def _taken(clear: ClearAlias) -> list[Detail]:
    """Return which device took the alias, if one did."""
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
