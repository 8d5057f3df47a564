"""Adds golden records for what has none yet: `python -m tests.services.domain.golden.write`.

What was written once is what logs in the field hold; it is never changed nor taken away.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.domain.topics import TOPICS

FILE = Path(__file__).with_name("records.json")
VARIANTS = 9
"""Records per kind: enough for every member of every inner oneof, and every value of most enums."""

_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: -1,
    FieldDescriptor.CPPTYPE_INT64: -(2**40),
    FieldDescriptor.CPPTYPE_UINT32: 2**31,
    FieldDescriptor.CPPTYPE_UINT64: 2**52,
}


class Golden(NamedTuple):
    """One record: its topic, its kind, its bytes in hexadecimal, and the decoded fields."""

    topic: str
    kind: str
    hex: str
    fields: dict[str, Any]


def load() -> tuple[list[Golden], dict[str, dict[str, int]]]:
    """Golden records, and the numbers of every enum by name."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return [Golden(**record) for record in stored["records"]], stored["enums"]


def kinds() -> Iterator[tuple[str, str]]:
    """Return every kind of fact and command of every topic."""
    for topic in TOPICS.values():
        for field in topic.envelope.DESCRIPTOR.oneofs[0].fields:
            yield topic.name, field.name


def meaning(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


def filled(topic: str, kind: str, variant: int) -> Message:
    """Return a record of the kind in which every field has a value."""
    message = TOPICS[topic].envelope()
    _fill(message, variant, kind)
    return message


def paths(descriptor: Any, fields: dict[str, Any], start: str = "") -> Iterator[str]:
    """Return the dotted names of all fields that have a value."""
    for field in descriptor.fields:
        if field.name in fields:
            yield start + field.name
            inner = field.message_type
            if inner is not None and not inner.GetOptions().map_entry:
                value = fields[field.name]
                for one in value if field.is_repeated else [value]:
                    yield from paths(inner, one, f"{start}{field.name}.")


def enums() -> dict[str, dict[str, int]]:
    """Return every enum that a record can contain, in a field or packed into a column."""
    found = {OutcomeKind.DESCRIPTOR.full_name: {name: int(number) for name, number in OutcomeKind.items()}}
    for topic in TOPICS.values():
        _collect(topic.envelope.DESCRIPTOR, found, set())
    return dict(sorted(found.items()))


def _fill(message: Any, variant: int, kind: str | None = None) -> None:
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is None or field.name == (kind or oneof.fields[variant % len(oneof.fields)].name):
            _set(message, field, variant)


def _set(message: Any, field: FieldDescriptor, variant: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)["key"] = field.number
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner = inner.add() if field.is_repeated else inner
        inner.SetInParent()
        _fill(inner, variant)
    elif field.is_repeated:
        getattr(message, field.name).extend([_value(field, variant), _value(field, variant + 1)])
    else:
        setattr(message, field.name, _value(field, variant))


def _value(field: FieldDescriptor, variant: int) -> Any:
    if field.enum_type is not None:
        values = field.enum_type.values[1:]
        return values[variant % len(values)].number
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_STRING:
            text = f"{field.name} 日 {variant}"
            return text if field.type == FieldDescriptor.TYPE_STRING else text.encode() + b"\xff\x00"
        case number:
            start = _WHOLE[number]
            return start - field.number - variant if start < 0 else start + field.number + variant


def _collect(descriptor: Any, found: dict[str, dict[str, int]], seen: set[str]) -> None:
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        enum: EnumDescriptor | None = field.enum_type
        if enum is not None:
            found[enum.full_name] = {value.name: value.number for value in enum.values}
        if field.message_type is not None:
            _collect(field.message_type, found, seen)


def _missing(records: list[Golden]) -> Iterator[Golden]:
    shown: dict[tuple[str, str], set[str]] = {}
    for record in records:
        descriptor = TOPICS[record.topic].envelope.DESCRIPTOR
        shown.setdefault((record.topic, record.kind), set()).update(paths(descriptor, record.fields))
    for topic, kind in kinds():
        covered = shown.setdefault((topic, kind), set())
        for variant in range(VARIANTS):
            message = filled(topic, kind, variant)
            new = set(paths(message.DESCRIPTOR, meaning(message)))
            if not new <= covered:
                covered |= new
                yield Golden(topic, kind, message.SerializeToString(deterministic=True).hex(), meaning(message))


def main() -> None:
    records, known = load() if FILE.exists() else ([], {})
    records += _missing(records)
    for name, values in enums().items():
        known[name] = {**values, **known.get(name, {})}
    stored = {"enums": known, "records": [record._asdict() for record in records]}
    FILE.write_text(json.dumps(stored, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
