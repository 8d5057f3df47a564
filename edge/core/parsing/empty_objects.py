"""Empty objects that PHP writes as `[]`, because its arrays stand for lists and for objects.

A request that is refused because a list stands where an object is expected is looked through once, and decoded again.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import msgspec.inspect
from msgspec.inspect import DictType, ListType, StructType, Type

from edge.core.parsing.integers import members

_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SPACES = b" \t\r\n"


class Places(NamedTuple):
    """The objects of a type. `is_object`: the value itself is one, and no list; `fields`: those in it."""

    is_object: bool
    fields: Mapping[str, "Places"]


def with_objects(raw: bytes, kind: Any) -> bytes:
    """Return the JSON with `{}` for each `[]` where `kind` has an object. What is no JSON is returned as it is."""
    try:
        return _with_objects(raw, _places_of(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw


def _with_objects(raw: bytes, places: Places) -> bytes:
    if places.is_object and raw[:64].translate(None, _SPACES)[:2] == b"[]":
        return b"{}"
    if not places.fields or raw.lstrip(_SPACES)[:1] != b"{":
        return raw
    entries = _entries.decode(raw)
    for name, inner in places.fields.items():
        if name in entries:
            entries[name] = msgspec.Raw(_with_objects(bytes(entries[name]), inner))
    return msgspec.json.encode(entries)


@functools.cache
def _places_of(kind: Any) -> Places:
    return _places(msgspec.inspect.type_info(kind))


def _places(kind: Type) -> Places:
    of_value = members(kind)
    objects = [member for member in of_value if isinstance(member, StructType | DictType)]
    fields: dict[str, Places] = {}
    for member in objects:
        if isinstance(member, StructType):
            inner = ((field.encode_name, _places(field.type)) for field in member.fields)
            fields |= {name: places for name, places in inner if places.is_object or places.fields}
    return Places(bool(objects) and not any(isinstance(member, ListType) for member in of_value), fields)
