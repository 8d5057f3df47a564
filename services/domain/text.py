"""Checks of texts that enter the service: names are printable; no text has NUL, which ends it in other programs."""

import codecs
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from services.errors import Code, InputError

_TEXT_LENGTH = 64
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters with which spreadsheets begin a formula, by OWASP's list (CSV injection), full-width signs among them."""


def checked_text(field: str, text: str, *, required: bool = True, most: int = _TEXT_LENGTH) -> str:
    """Return the text if it has 1 to `most` printable characters; InputError names the field."""
    if not text and not required:
        return text
    if not text.strip() or len(text) > most or not text.isprintable():
        raise InputError(Code.NOT_PRINTABLE, at=field, most=most)
    return text


def refuse_nul(value: Any, path: str = "") -> None:
    """Check that no text in the JSON value has NUL. InputError: a text has it; the error says where.

    `path`: the path of the value in the request.
    """
    place = _nul_place(value, path)
    if place is not None:
        raise InputError(Code.HAS_NUL, at=place)


def check_texts(request: Message) -> None:
    """Check that no text in the request of a gRPC call has NUL. InputError: a text has it; the error says where."""
    refuse_nul(MessageToDict(request, preserving_proto_field_name=True))


def _nul_place(value: Any, path: str) -> str | None:
    match value:
        case str():
            return path if "\0" in value else None
        case dict():
            if any("\0" in key for key in value):
                return f"a key of {path}" if path else "a key"
            parts = [(inner, f"{path}.{key}".lstrip(".")) for key, inner in value.items()]
        case list():
            parts = [(inner, f"{path}[{index}]") for index, inner in enumerate(value)]
        case _:
            return None
    return next((found for inner, own in parts if (found := _nul_place(inner, own)) is not None), None)


def without_byte_order_mark(text: bytes) -> bytes:
    """Return UTF-8 without the mark that some editors and libraries write before it (RFC 8259, 8.1)."""
    return text.removeprefix(codecs.BOM_UTF8)
