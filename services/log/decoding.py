"""Decoding of records into the message types of their topics."""

from typing import Any

from services.log.port import Path, Record
from services.log.topics import Topics

SEALED_MARK = b"\xf5sealed1"
"""The first bytes of each sealed value. UTF-8 texts have none of them."""


def decode(topics: Topics, record: Record) -> Any:
    """Return the record's envelope. DecodeError: the value is not a message of the topic's type."""
    message: Any = topics[record.topic].envelope()
    message.ParseFromString(record.value)
    for path, content in record.opened:
        merge(message, path, content)
    if record.opened or message.meta.sealed.startswith(SEALED_MARK):
        message.meta.ClearField("sealed")
    return message


def key_in_clear(topics: Topics, record: Record, message: Any) -> bytes:
    """Return the key that the record was written with: a sealed one is stored under another key.

    `message` is its envelope. A token whose key is destroyed has its name in both.
    """
    key_of = topics[record.topic].key_of
    return (key_of(message) if key_of else None) or record.key


def merge(message: Any, path: Path, content: bytes) -> None:
    """Merge what was sealed of a part of a message into it."""
    for number, index in path:
        field = message.DESCRIPTOR.fields_by_number[number]
        inner = getattr(message, field.name)
        if field.message_type is None:
            inner[index] = content.decode()
            return
        message = inner[index] if field.is_repeated else inner
    message.MergeFromString(content)
