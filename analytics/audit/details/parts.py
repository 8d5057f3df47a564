"""Parts of the line about an entry of an audit that several audits have, and their form in the store."""

from base64 import b64decode
from collections.abc import Iterable, Sequence

from analytics.store.enum_names import enum_number
from protos.analytics.v1.details_pb2 import CommandOrigin, Detail, Details
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import Platform


def texts(*values: str) -> list[Detail]:
    """Return a part for each value that is not empty: a name, an id, a setting or a text that a person wrote."""
    return [Detail(text=value) for value in values if value]


def reasons(recorded: str) -> list[Detail]:
    """Return the reason that something was recorded with; nothing if it has none."""
    return [Detail(reason=recorded)] if recorded else []


def origins(writer: str, interface: str, address: str, request_id: str) -> list[Detail]:
    """Return where a command came from; nothing if that is not known."""
    origin = command_origin(writer, interface, address, request_id)
    return [Detail(origin=origin)] if origin.ByteSize() else []


def command_origin(writer: str, interface: str, address: str, request_id: str) -> CommandOrigin:
    """Return through what a command came, or else which role wrote it."""
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


def read_details(stored_base64: str, text: str) -> Sequence[Detail]:
    """Return the parts from the store; of a row that an older version stored, which has only the text, this text."""
    return Details.FromString(b64decode(stored_base64)).details or texts(text)
