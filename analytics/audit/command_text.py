"""Text of commands to devices, for audits."""

from collections.abc import Iterable
from typing import assert_never

from analytics.audit.timeline import comma_joined
from analytics.store.columns import ATTRIBUTES
from analytics.store.enum_names import enum_name
from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import Attributes, DeviceCommand

DESCRIPTION = ("model", *ATTRIBUTES)
"""The attributes of a device and its model, in the order of audits."""


def command_name(command: DeviceCommand) -> str:
    """Return for example `add tags`; "" for a command that only a newer writer knows."""
    return (command.WhichOneof("command") or "").replace("_", " ")


def command_detail(command: DeviceCommand) -> str:
    """Return the requested change, for example `+tag 1, +tag 2`."""
    match command.WhichOneof("command"):
        case "register":
            platform = enum_name(Platform.DESCRIPTOR, command.register.platform, "PLATFORM_")
            return comma_joined(platform, *attribute_texts(command.register.attributes))
        case "set_alias":
            return f"alias {command.set_alias.alias}"
        case "clear_alias":
            only = command.clear_alias
            return f"no alias if it is {only.only_alias}" if only.HasField("only_alias") else "no alias"
        case "add_tags":
            return comma_joined(*tags("+", command.add_tags.tags))
        case "remove_tags":
            return comma_joined(*tags("-", command.remove_tags.tags))
        case "add_stags":
            return comma_joined(*stags("+", command.add_stags.stags))
        case "remove_stags":
            return comma_joined(*stags("-", command.remove_stags.stags))
        case "set_attributes":
            return comma_joined(*attribute_texts(command.set_attributes.attributes))
        case "remove":
            return command.remove.reason
        case "revoke_key":
            return "its key"
        case "revoke_all_keys":
            return "all keys of the app"
        case "reserve_numbers":
            return f"{command.reserve_numbers.count} device numbers"
        case "begin_session" | None:
            return ""
        case never:
            assert_never(never)


def tags(sign: str, values: Iterable[int]) -> list[str]:
    return [f"{sign}tag {tag}" for tag in sorted(values)]


def stags(sign: str, values: Iterable[str]) -> list[str]:
    return [f'{sign}stag "{stag}"' for stag in sorted(values)]


def attribute_texts(attributes: Attributes) -> list[str]:
    """Return a text for each attribute that is set."""
    return [f"{name} {value}" for name in DESCRIPTION if (value := getattr(attributes, name))]
