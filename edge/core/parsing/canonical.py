"""The canonical text of a request, over which its sign is computed.

It is the request without its sign, as compact JSON: keys sorted by code point at every level, characters beyond ASCII
unescaped, and every number as the request wrote it (`1.50` stays `1.50`). To preserve numbers, `parse` turns each
into a string that begins with a lone surrogate, which no accepted text contains; `text_of` takes its quotes off.

Most bodies have neither escapes nor fractions. `_fields_and_text` parses and writes those six times as fast by msgspec,
whose text is the canonical one wherever it is as long as the body.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec
import numpy as np

from services.domain.text import refuse_nul
from services.runtime.errors import InputError

MAX_DEPTH = 32
_NUMBER = "\udc80"
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON text, also one that does not end: what fails to match would be tried again from each quote inside it."""

_SPACES = b" \t\r\n"
_STEPS = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{[}]"))
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_split_at_numbers = re.compile(f'"{_NUMBER}([^"]*)"').split


Named = TypeVar("Named")


class SignedRequest(NamedTuple, Generic[Named]):
    """A body that is a JSON object. `text`: its canonical text; `sign`: the sign in the request, not yet verified;
    `apps`: the apps that it names. Its parsed fields are not kept: they can take 40 times the memory of the body.
    """

    raw: bytes
    text: str
    sign: str
    apps: Named


def read(raw: bytes, apps_of: Callable[[Mapping[str, Any]], Named]) -> SignedRequest[Named]:
    """Parse a signed body; `apps_of` finds the apps in its fields.

    InputError: no JSON object, a repeated key, NaN, nested too deep, no sign, or the apps are wrong.
    """
    fields, text = _fields_and_text(raw)
    sign = fields.get("sign")
    if sign is None:
        raise InputError("sign is missing")
    if not isinstance(sign, str) or is_number(sign):
        raise InputError("sign must be a string")
    return SignedRequest(raw, text, sign, apps_of(fields))


def check_texts(request: SignedRequest[Any]) -> None:
    """InputError names the first key or text with NUL. To be called once the sign is verified."""
    if "\\u0000" in request.text:
        refuse_nul(parse(request.raw))


def canonical_text(raw: bytes) -> str:
    """Return the canonical text of a body, with or without a sign in it."""
    return _fields_and_text(raw)[1]


def _fields_and_text(raw: bytes) -> tuple[dict[str, Any], str]:
    """Return the fields, with numbers as `number_or_text` reads them, and the canonical text without the sign."""
    fields = _plain_fields(raw)
    if fields is not None:
        return fields, _sorted_encoder.encode(without_sign(fields)).decode()
    fields = parse(raw)
    return fields, text_of(without_sign(fields))


def _plain_fields(raw: bytes) -> dict[str, Any] | None:
    """Parse a body that msgspec writes as canonical text; None for any other.

    Spaces apart, that text is as long as the body unless it lacks a repeated key or the sign of `-0`: it is shorter
    then. Only escapes and fractions could make it longer, and bodies with them are none of these.
    """
    _refuse_depth(raw)
    if b"\\" in raw:
        return None
    try:
        fields = _plain_fields_decoder.decode(raw)
        size = len(_sorted_encoder.encode(fields).translate(None, _SPACES))
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and size == len(raw.translate(None, _SPACES)) else None


def without_sign(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request but `sign`."""
    return {name: value for name, value in fields.items() if name != "sign"}


def parse(raw: bytes) -> dict[str, Any]:
    """Parse the object in the body. Its numbers are marked strings that `text_of` and `number_or_text` read."""
    value = loads(raw)
    if not isinstance(value, dict):
        raise InputError("the body is not a JSON object")
    return value


def loads(raw: bytes) -> Any:
    """Parse any JSON value as `parse` does."""
    try:
        _refuse_depth(raw)
        if _SURROGATE_ESCAPE.search(raw):
            _refuse_lone_surrogates(raw)
        return _decoder.decode(raw.decode())
    except UnicodeDecodeError:
        raise InputError("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InputError(f"the body is not JSON: {error.msg} at character {error.pos}") from None


def written(value: Any) -> bytes:
    """Return a parsed value as JSON again, with its keys in their order and its numbers as they were."""
    return "".join(_split_at_numbers(_plain_encoder.encode(value))).encode()


def text_of(fields: Mapping[str, Any]) -> str:
    return "".join(_split_at_numbers(_encoder.encode(fields)))


def number_or_text(value: object) -> str | None:
    """Return a string unchanged and a number as it was written; None for any other value."""
    if type(value) is int:
        return str(value)
    return value.removeprefix(_NUMBER) if isinstance(value, str) else None


def is_number(value: object) -> bool:
    """Return whether a parsed value is a number."""
    return type(value) is int or (isinstance(value, str) and value.startswith(_NUMBER))


def number(digits: str) -> str:
    """Return the parsed form of a number."""
    return _NUMBER + digits


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise InputError(f"{twice} is given twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise InputError(f"the body is not JSON: {name} is no number")


def _refuse_lone_surrogates(raw: bytes) -> None:
    try:
        json.dumps(_plain_decoder.decode(raw.decode()), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("the body contains half of a surrogate pair") from None


def _refuse_depth(raw: bytes) -> None:
    """Count the brackets outside of texts, before parsing: the JSON parser recurses into each level."""
    if raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return
    steps = _TEXTS.sub(b"", raw).translate(_STEPS, _NO_BRACKETS)
    if np.frombuffer(steps, np.int8).cumsum(dtype=np.int32).max(initial=0) > MAX_DEPTH:
        raise InputError(f"the body is nested deeper than {MAX_DEPTH} levels")


def _no_fraction(digits: str) -> NoReturn:
    raise ValueError(f"{digits} may be written in another way")


_plain_fields_decoder = msgspec.json.Decoder(float_hook=_no_fraction)
_sorted_encoder = msgspec.json.Encoder(order="sorted")
_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_NUMBER.__add__, parse_float=_NUMBER.__add__, parse_constant=_no_number
)
_plain_decoder = json.JSONDecoder(parse_int=str, parse_float=str)
_encoder = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), check_circular=False)
_plain_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
