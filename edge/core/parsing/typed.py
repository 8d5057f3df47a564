"""Decodes JSON into types, with errors that name the field by its path."""

import functools
import re
from typing import Any

import msgspec
import msgspec.inspect

from edge.core.parsing import canonical, integers
from edge.core.parsing.empty_objects import with_objects
from edge.core.parsing.failing_keys import MAX_KEYS, Failure, TooManyKeysError, named_path
from services.runtime.errors import InputError

ABSENT = msgspec.Raw(b"null")
"""Default of a field that is decoded later."""

_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_SHAPES = [
    (re.compile(r"Object missing required field `(.+)`"), ".{0} is missing"),
    (re.compile(r"Object contains unknown field `(.+)`"), ".{0} is not known"),
    (re.compile(r"Expected `str` of length >= 1"), " must not be empty"),
    (re.compile(r"Expected `str` of length <= (\d+)"), " must have at most {0} characters"),
    (re.compile(r"Expected `(?:array|object)` of length >= 1"), " must not be empty"),
    (re.compile(r"Expected `(?:array|object)` of length >= (\d+)"), " must have at least {0} entries"),
    (re.compile(r"Expected `(?:array|object)` of length <= (\d+)"), " must have at most {0} entries"),
    (re.compile(r"Invalid enum value (.+)"), " must not be {0}"),
    (re.compile(r"(?:Number|Integer value) out of range"), " is a number that is out of range"),
]
_OUT_OF_RANGE = re.compile(r"Expected `int` [<>]=")
_STEP = re.compile(r"\.([^.\[]+)|(\[)[^\]]+\]")
_EXPECTED = re.compile(r"Expected `([^`]+)`")


def decode(kind: Any, raw: bytes | msgspec.Raw, at: str = "") -> Any:
    """Decode JSON; `at` is its path in the request. Where the type has integers, strings of digits are integers too;
    where it has objects, `[]` is an empty one.

    InputError names the first field that does not fit the type. What comes before that field fits, so nothing is
    rewritten unless the field is an integer that may be written in another way.
    """
    try:
        return _without_nul(_decoder(kind).decode(raw), raw, at)
    except msgspec.ValidationError as error:
        failure = Failure.of(error)
        if failure.is_of_object and (changed := with_objects(bytes(raw), kind)) != bytes(raw):
            return decode(kind, changed, at)
        if not failure.is_of_integer:
            raise InputError(_problem(error, kind, at, bytes(raw))) from None
        return _decode_plain(kind, integers.rewritten(bytes(raw), kind, at), at)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(f"{at or 'the body'} is not JSON that can be read") from None


def _decode_plain(kind: Any, raw: bytes, at: str) -> Any:
    try:
        return _without_nul(_decoder(kind).decode(raw), raw, at)
    except msgspec.ValidationError as error:
        if Failure.of(error).is_of_object and (changed := with_objects(raw, kind)) != raw:
            return _decode_plain(kind, changed, at)
        raise InputError(_problem(error, kind, at, raw)) from None


def _without_nul(value: Any, raw: bytes | msgspec.Raw, at: str) -> Any:
    """Return the decoded value. InputError names a text of it with NUL; what is not decoded, nobody reads."""
    if canonical.NUL in bytes(raw):
        canonical.check_nul(msgspec.json.encode(_read_fields(value)), at)
    return value


def _read_fields(value: Any) -> Any:
    """Return a struct as an object without the fields that are decoded later, if at all."""
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
    return {name: _read_fields(inner) for name, inner in fields.items() if not isinstance(inner, msgspec.Raw)}


def convert(kind: Any, value: object, at: str) -> Any:
    """Convert a decoded JSON value as `decode` does."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(_problem(error, kind, at, msgspec.json.encode(value))) from None


def _problem(error: msgspec.ValidationError, kind: Any, at: str, raw: bytes) -> str:
    """Return the error in `raw` as one sentence that begins with the field's path."""
    text, path, is_of_key = Failure.of(error)
    try:
        place = (at + named_path(_decoder(kind).decode, raw, path)).lstrip(".")
    except TooManyKeysError as of_object:
        return f"{f'{at}{of_object}'.lstrip('.') or 'the body'} must have at most {MAX_KEYS} entries"
    if is_of_key:
        place += ": a key"
    if _OUT_OF_RANGE.match(text) and (bounds := _bounds(kind, path)):
        return f"{place} must be an integer from {bounds.ge} to {bounds.le}"
    for pattern, sentence in _SHAPES:
        if found := pattern.fullmatch(text):
            return (place + sentence.format(*found.groups())).lstrip(".")
    if found := _EXPECTED.match(text):
        kinds = [word for word in found[1].split(" | ") if word != "null"]
        return f"{place or 'the body'} must be {' or '.join(_WORDS.get(word, word) for word in kinds)}"
    return f"{place}: {text}"


def _bounds(kind: Any, path: str) -> msgspec.inspect.IntType | None:
    """Return the bounded integer type at the path, if there is one."""
    found = integers.members(msgspec.inspect.type_info(kind))
    for name, _ in _STEP.findall(path):
        found = [member for parent in found for child in _children(parent, name) for member in integers.members(child)]
    return next((member for member in found if isinstance(member, msgspec.inspect.IntType) and member.le), None)


def _children(kind: msgspec.inspect.Type, name: str) -> list[msgspec.inspect.Type]:
    """Return the type one step down the path: the field of that name, or the entries where the name is empty."""
    match kind:
        case msgspec.inspect.StructType(fields=fields):
            return [field.type for field in fields if field.encode_name == name]
        case msgspec.inspect.ListType(item_type=entry) | msgspec.inspect.DictType(value_type=entry) if not name:
            return [entry]
        case _:
            return []


@functools.cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind)
