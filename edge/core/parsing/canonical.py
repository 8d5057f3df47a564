"""The canonical text of a request, over which its sign is computed.

It is the request without its sign, as compact JSON: keys sorted by code point at every level, characters beyond ASCII
unescaped, and every number as the request wrote it (`1.50` stays `1.50`). To preserve numbers, `parse` turns each
into a string that begins with a lone surrogate, which no accepted text contains; `text_of` takes its quotes off.

msgspec is ten times as fast and used first; `_plain` tells which bodies it does not preserve, and `parse` takes these.

Reading takes time in proportion to the body. `reading` does it in steps, between which others may have their turns.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import msgspec
import numpy as np

from services.errors import Code, InputError

MAX_DEPTH = 32
MAX_KEYS = 20_000
"""Upper bound of the keys of a body, all levels together. A token is a key where string tags of devices are changed."""

MAX_VALUES = 120_000
"""Upper bound of the commas and brackets of a body, and so of its values, all levels together. The largest
valid request has 100,000 values: 100 string tags for each of 1000 tokens."""

_CUT = "; it ends too early: Content-Length counts bytes, not characters"
_NUMBER = "\udc80"
_SPACES = b" \t\r\n"
_QUOTE, _BACKSLASH = b'"', b"\\"
_FEW_QUOTES = 20_000
"""Number of quotes up to which a body is divided at them faster than looked at as a whole."""

_STEPS = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{[}]"))
_MINUS_ZERO = re.compile(rb"-0(?![.eE])")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_split_at_numbers = re.compile(f'"{_NUMBER}([^"]*)"').split


Named = TypeVar("Named")


Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""A function in steps, each of which takes time in proportion to the body."""


class SignedRequest(NamedTuple, Generic[Named]):
    """A body that is a JSON object. `text`: its canonical text, `hashed_text`: MD5 of it; `sign`: the sign in the
    request, not yet verified; `apps`: the apps that it names. Its parsed fields are not kept: they can take 40 times
    the memory of the body.
    """

    raw: bytes
    text: str
    hashed_text: "hashlib._Hash"
    sign: str
    apps: Named


def reading(raw: bytes, apps_of: Callable[[Mapping[str, Any]], Named]) -> Steps[SignedRequest[Named]]:
    """Parse a signed body in steps; `apps_of` finds the apps in its fields.

    InputError: no JSON object, a repeated key, NaN, nested too deep, no sign, or the apps are wrong.
    """
    fields, text = yield from _fields_and_text(raw)
    yield
    sign = fields.get("sign")
    if sign is None:
        raise InputError("sign is missing")
    if not isinstance(sign, str) or is_number(sign):
        raise InputError("sign must be a string")
    return SignedRequest(raw, text, hashlib.md5(text.encode(), usedforsecurity=False), sign, apps_of(fields))


def finished(steps: Steps[Result]) -> Result:
    """Do all steps at once and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def read(raw: bytes, apps_of: Callable[[Mapping[str, Any]], Named]) -> SignedRequest[Named]:
    """Parse a signed body as `reading` does, at once."""
    return finished(reading(raw, apps_of))


def may_have_nul(text: str) -> bool:
    """Return whether `check_nul` may find a text with NUL in the request with this canonical text."""
    return "\\u0000" in text


def check_nul(raw: bytes, at: str = "") -> None:
    """InputError names the first key or text with NUL in JSON, whose path in the request is `at`."""
    place = _nul_place(raw, at)
    if place is not None:
        raise InputError(Code.HAS_NUL, at=place)


def _nul_place(raw: bytes, path: str) -> str | None:
    """Return the place of the first NUL; only the parts in which it is escaped are parsed, level by level."""
    match raw.lstrip()[:1]:
        case b"{":
            entries = _raw_entries.decode(raw)
            if "\0" in "".join(entries):
                return f"a key of {path}" if path else "a key"
            parts = [(value, f"{path}.{key}".lstrip(".")) for key, value in entries.items() if NUL in bytes(value)]
        case b"[":
            items = _raw_items.decode(raw)
            parts = [(value, f"{path}[{index}]") for index, value in enumerate(items) if NUL in bytes(value)]
        case _:
            return path if "\0" in _text.decode(raw) else None
    return next((found for value, own in parts if (found := _nul_place(bytes(value), own)) is not None), None)


def canonical_text(raw: bytes) -> str:
    """Return the canonical text of a body, with or without a sign in it."""
    return fields_and_text(raw)[1]


def fields_and_text(raw: bytes) -> tuple[dict[str, Any], str]:
    """Return the fields and the canonical text of a body, signed or not; `number_or_text` reads the fields."""
    return finished(_fields_and_text(raw))


def _fields_and_text(raw: bytes) -> Steps[tuple[dict[str, Any], str]]:
    """As `fields_and_text`, in steps."""
    _refuse_shape(raw)
    yield
    fields = _plain(raw)
    if fields is not None:
        yield
        rest = without_sign(fields)
        text = _sorted_encoder.encode(rest)
        yield
        sign = _sorted_encoder.encode({"sign": fields["sign"]} if len(rest) < len(fields) else {})
        if _is_same(raw, text, sign):
            return fields, text.decode()
    yield
    fields = parse(raw)
    yield
    return fields, text_of(without_sign(fields))


def _plain(raw: bytes) -> dict[str, Any] | None:
    """Parse a body by msgspec; None for one that msgspec refuses.

    msgspec writes texts as `json` does and numbers as they were, except for `-0`; of a repeated key it keeps one value.
    `_is_same` finds bodies with either.
    """
    try:
        fields = _plain_decoder.decode(raw)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _is_same(raw: bytes, text: bytes, sign: bytes) -> bool:
    """Return whether `text` and `sign` (the object with the sign alone) preserve the body's keys and numbers.

    In a body without escapes equal length without spaces shows it: a lost key or minus of `-0` makes them shorter.
    """
    if _BACKSLASH not in raw:
        written = len(text.translate(None, _SPACES)) + len(sign.translate(None, _SPACES)) - len(b"{}")
        return written + (len(text) > len(b"{}") and len(sign) > len(b"{}")) == len(raw.translate(None, _SPACES))
    outside = _without_texts(raw)
    keys = _without_texts(text).count(b":") + _without_texts(sign).count(b":")
    return keys == outside.count(b":") and not _MINUS_ZERO.search(outside)


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
        _refuse_shape(raw)
        if _SURROGATE_ESCAPE.search(raw):
            _refuse_lone_surrogates(raw)
        return _decoder.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise InputError("the body is not UTF-8" + (_CUT if error.end == len(raw) else "")) from None
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(error.doc) or error.msg.startswith("Unterminated")
        hint = _CUT if is_cut else ""
        raise InputError(
            f"the body is not JSON: {error.msg.removesuffix(' at')} at character {error.pos}{hint}"
        ) from None


def written(value: Any) -> bytes:
    """Return a parsed value as JSON again, with its keys in their order and its numbers as they were."""
    return "".join(_split_at_numbers(_plain_encoder.encode(value))).encode()


def text_of(fields: Mapping[str, Any]) -> str:
    return "".join(_split_at_numbers(_encoder.encode(fields)))


def number_or_text(value: object) -> str | None:
    """Return a string unchanged and a number as it was written; None for any other value."""
    match value:
        case str():
            return value.removeprefix(_NUMBER)
        case msgspec.Raw():
            return bytes(value).decode()
        case bool():
            return None
        case int():
            return str(value)
        case _:
            return None


def is_number(value: object) -> bool:
    """Return whether a parsed value is a number."""
    return type(value) in (int, msgspec.Raw) or (isinstance(value, str) and value.startswith(_NUMBER))


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
        json.dumps(_text_decoder.decode(raw.decode()), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("the body contains half of a surrogate pair") from None


def _refuse_shape(raw: bytes) -> None:
    """Count brackets, commas and colons outside of texts, before parsing: the JSON parser recurses into each level,
    and the time of parsing and sorting grows with the values more than with the bytes.
    """
    levels = raw.count(b"{") + raw.count(b"[")
    if levels <= MAX_DEPTH and raw.count(b",") <= MAX_VALUES // 2 and raw.count(b":") <= MAX_KEYS:
        return
    outside = _without_texts(raw)
    steps = outside.translate(_STEPS, _NO_BRACKETS)
    if np.frombuffer(steps, np.int8).cumsum(dtype=np.int32).max(initial=0) > MAX_DEPTH:
        raise InputError(f"the body is nested deeper than {MAX_DEPTH} levels")
    if len(steps) + outside.count(b",") > MAX_VALUES:
        raise InputError(f"the body has more than {MAX_VALUES} values")
    if outside.count(b":") > MAX_KEYS:
        raise InputError(f"the body has more than {MAX_KEYS} keys")


def _without_texts(raw: bytes) -> bytes:
    """Return the JSON without the texts in it; the last one may lack its closing quote."""
    if _BACKSLASH in raw:
        raw = raw.replace(_BACKSLASH * 2, b"").replace(_BACKSLASH + _QUOTE, b"")
    if raw.count(_QUOTE) < _FEW_QUOTES:
        return b"".join(raw.split(_QUOTE)[::2])
    characters = np.frombuffer(raw, np.uint8)
    is_quote = characters == ord(_QUOTE)
    is_outside = np.bitwise_and(np.cumsum(is_quote, dtype=np.uint32), 1) == 0
    outside: bytes = characters[is_outside & ~is_quote].tobytes()
    return outside


NUL = b"\\u0000"
_raw_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_text = msgspec.json.Decoder(str)
_plain_decoder = msgspec.json.Decoder(float_hook=msgspec.Raw)
_sorted_encoder = msgspec.json.Encoder(order="sorted")
_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_NUMBER.__add__, parse_float=_NUMBER.__add__, parse_constant=_no_number
)
_text_decoder = json.JSONDecoder(parse_int=str, parse_float=str)
_encoder = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), check_circular=False)
_plain_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
