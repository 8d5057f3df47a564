"""Decoding of records into the message types of their topics."""

from typing import Any

from google.protobuf.message import Message

from services.log.port import Record
from services.log.topics import Topics


def decode(topics: Topics, record: Record) -> Any:
    """Return the record's envelope. DecodeError: the value is not a message of the topic's type."""
    message: Message = topics[record.topic].envelope()
    message.ParseFromString(record.value)
    return message
