"""NUL characters, which no text that enters the service may contain: stores and other programs end a text at them."""

from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from services.runtime.errors import InputError


def refuse_nul(value: Any, path: str = "") -> None:
    """InputError names the first text with NUL in a JSON value that is at `path` in the request."""
    place = _nul_place(value, path)
    if place is not None:
        raise InputError(f"{place} must not contain NUL")


def check_texts(request: Message) -> None:
    """InputError names the first text with NUL in a call between roles or of an operator's command."""
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
