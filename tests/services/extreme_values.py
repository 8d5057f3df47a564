"""Records of every kind in which one number at a time is the largest or the smallest that its field holds."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pyroaring import BitMap

from services.domain.topics import TOPICS
from tests.services.domain.golden.write import VARIANTS

T0_MS = 1_800_000_000_000
_BITMAPS = ("numbers", "audience")
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class Extreme(NamedTuple):
    """A record whose field at `path` has an extreme value; `name` says which, for people."""

    name: str
    message: Any


OWNERS_EPOCH = 1
"""The epoch of the records but for those with an extreme one; to be replaced by that of the partition's owner."""


def extremes(topic: str, partition: int) -> list[Extreme]:
    """Return the records of the topic for a partition, otherwise usual ones."""
    found: dict[str, Extreme] = {}
    for field in TOPICS[topic].envelope.DESCRIPTOR.oneofs[0].fields:
        for variant in range(VARIANTS):
            usual: Any = TOPICS[topic].envelope()
            _fill(usual, variant, partition, field.name)
            usual.meta.epoch = OWNERS_EPOCH
            for path, bounds in _numbers(usual):
                for value in bounds:
                    name = f"{field.name}: {'.'.join(path)} = {value}"
                    if name not in found:
                        changed = type(usual)()
                        changed.CopyFrom(usual)
                        changed.meta.event_id = f"{variant}/{name}".encode()
                        _set(changed, path, value)
                        found[name] = Extreme(name, changed)
    return list(found.values())


def _numbers(message: Any, start: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], tuple[int, int]]]:
    """Yield the path of every number in the message that has a value, and the bounds of its type."""
    for field, value in message.ListFields():
        path = (*start, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            yield from _numbers(value[0] if field.is_repeated else value, path)
        elif field.cpp_type in _BOUNDS:
            yield path, _BOUNDS[field.cpp_type]
        elif field.enum_type is not None:
            yield path, _BOUNDS[FieldDescriptor.CPPTYPE_INT32]


def _set(message: Any, path: tuple[str, ...], value: int) -> None:
    for name in path[:-1]:
        inner = getattr(message, name)
        message = inner if isinstance(inner, Message) else inner[0]
    if message.DESCRIPTOR.fields_by_name[path[-1]].is_repeated:
        getattr(message, path[-1])[0] = value
    else:
        setattr(message, path[-1], value)


def _fill(message: Any, variant: int, partition: int, kind: str = "") -> None:
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and field.name != (kind or oneof.fields[variant % len(oneof.fields)].name):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            inner = getattr(message, field.name)
            inner = inner.add() if field.is_repeated else inner
            inner.SetInParent()
            _fill(inner, variant, partition)
        elif field.is_repeated:
            getattr(message, field.name).append(_usual(field, variant, partition))
        else:
            setattr(message, field.name, _usual(field, variant, partition))


def _usual(field: FieldDescriptor, variant: int, partition: int) -> Any:
    if field.enum_type is not None:
        values = field.enum_type.values[1:]
        return values[variant % len(values)].number
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return bool(variant % 2)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_STRING:
            return f"{field.name} {variant}"
        case FieldDescriptor.CPPTYPE_STRING:
            return BitMap([1]).serialize() if field.name in _BITMAPS else b"\x01"
        case _ if field.name.endswith("_ms"):
            return T0_MS
        case _:
            return partition if field.name == "partition" else 1
