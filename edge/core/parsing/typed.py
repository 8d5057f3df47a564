"""Decodes JSON into types as clients write it: integers as texts, PHP's empty objects, errors that name the field."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, Optional

import msgspec
import msgspec.inspect
from msgspec.inspect import DictType, IntType, ListType, LiteralType, Metadata, StrType, StructType, Type, UnionType

from edge.core.parsing import canonical
from services.domain.limits import MAX_ENTRIES
from services.errors import Code, InputError

# Integers that clients write in another way: as a string of digits (`"7"`), or with a fraction of zeros (`7.0`).
#
# A request with plain integers is decoded at once. One that fails at an integer is rewritten here and decoded again.
# Only the fields whose types have integers are rewritten, once each, however many integers are written so; all else
# is passed on as it is. A list or object of integers is rewritten entry by entry, so its length is checked before.

MAX_DIGITS = 20
_DIGITS = re.compile(f"-?[0-9]{{1,{MAX_DIGITS}}}")
_MAX_LENGTH = 40
_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Places(NamedTuple):
    """Where values of a type have integers; None and no fields where there are none.

    `is_integer`: the value itself is an integer; `is_text`: it may also be a text, so a string of digits stays a text;
    `entries`, `values`, `fields`: the places in each entry of a list, value of an object, and field of a struct.
    """

    is_integer: bool
    is_text: bool
    entries: Optional["Places"]
    values: Optional["Places"]
    fields: Mapping[str, "Places"]


def rewritten(raw: bytes, kind: Any, at: str = "") -> bytes:
    """Return the JSON with the integers that `kind` asks for written plainly, and all else as it was.

    `at` is its path in the request. InputError: a list or object of integers has more entries than any field may have.
    """
    places = _places_of(kind)
    return raw if places is None else _rewritten(raw, places, at)


def _rewritten(raw: bytes, places: Places, at: str) -> bytes:
    if not places.fields or raw.lstrip()[:1] != b"{":
        if raw.count(b",") >= MAX_ENTRIES:
            raise InputError(Code.TOO_MANY_ENTRIES, at=at or "the body", most=MAX_ENTRIES)
        return canonical.written(_plain(canonical.loads(raw), places))
    entries = _entries.decode(raw)
    for name, inner in places.fields.items():
        if name in entries:
            entries[name] = msgspec.Raw(_rewritten(bytes(entries[name]), inner, f"{at}.{name}".lstrip(".")))
    return msgspec.json.encode(entries)


def integer_text(value: object) -> str | None:
    """Return the decimal digits of an integer in a request that `canonical` parsed; None: the value is no integer."""
    text = canonical.number_or_text(value)
    if text is None or len(text) > _MAX_LENGTH:
        return None
    if _DIGITS.fullmatch(text):
        return str(int(text))
    if not canonical.is_number(value):
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return f"{number:.0f}" if number.adjusted() < _MAX_LENGTH and number == number.to_integral_value() else None


def _plain(value: Any, places: Places | None) -> Any:
    match value:
        case _ if places is None:
            return value
        case str():
            return _plain_integer(value, places)
        case list():
            return [_plain(entry, places.entries) for entry in value]
        case dict():
            return {key: _plain(entry, places.fields.get(key, places.values)) for key, entry in value.items()}
        case _:
            return value


def _plain_integer(value: str, places: Places) -> str:
    if not places.is_integer or (places.is_text and not canonical.is_number(value)):
        return value
    digits = integer_text(value)
    return value if digits is None else canonical.number(digits)


@functools.cache
def _places_of(kind: Any) -> Places | None:
    return _places([msgspec.inspect.type_info(kind)])


def _places(kinds: Iterable[Type]) -> Places | None:
    """Return the places of a value of any of these types."""
    of_value = [member for kind in kinds for member in members(kind)]
    if not of_value:
        return None
    fields: dict[str, Places] = {}
    for kind in of_value:
        if isinstance(kind, StructType):
            inner = ((field.encode_name, _places([field.type])) for field in kind.fields)
            fields |= {name: places for name, places in inner if places is not None}
    places = Places(
        is_integer=any(isinstance(kind, IntType) or _is_integers(kind) for kind in of_value),
        is_text=any(isinstance(kind, StrType) for kind in of_value),
        entries=_places(kind.item_type for kind in of_value if isinstance(kind, ListType)),
        values=_places(kind.value_type for kind in of_value if isinstance(kind, DictType)),
        fields=fields,
    )
    return places if places.is_integer or places.entries or places.values or fields else None


def _is_integers(kind: Type) -> bool:
    return isinstance(kind, LiteralType) and all(isinstance(value, int) for value in kind.values)


def members(kind: Type) -> list[Type]:
    """Return the members of a union, or the type itself, without descriptions around them."""
    if isinstance(kind, Metadata):
        return members(kind.type)
    if isinstance(kind, UnionType):
        return [member for inner in kind.types for member in members(inner)]
    return [kind]


# Names the keys of objects in the path of a decoding error; msgspec writes `[...]` in place of each key.

ANY_KEY = "[...]"
_ERROR = re.compile(r"(.*?)(?: - at (`key` in )?`\$(.*)`)?", re.DOTALL)
_NO_INTEGER = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `(?:str|float)`")
_NO_OBJECT = re.compile(r"Expected `[^`]*\bobject\b[^`]*`, got `array`")
_EMPTY = '""'

_items = msgspec.json.Decoder(list[msgspec.Raw])

Decode = Callable[[bytes], object]


MAX_KEYS = 1000
"""Entries of an object in which the failing one is searched. No object may have more where each entry is checked."""


class Failure(NamedTuple):
    """An error of msgspec in parts. `path`: such as `.tags[0][...]`, "" for the whole value.

    `is_of_key`: a key of the object at the path is wrong, and not a value.
    """

    text: str
    path: str
    is_of_key: bool

    @classmethod
    def of(cls, error: msgspec.ValidationError) -> "Failure":
        found = _ERROR.fullmatch(str(error))
        assert found is not None
        return cls(found[1], found[3] or "", bool(found[2]))

    @property
    def is_of_integer(self) -> bool:
        """Whether a text or a fraction stands where an integer is expected."""
        return bool(_NO_INTEGER.fullmatch(self.text))

    @property
    def is_of_object(self) -> bool:
        """Whether a list stands where an object is expected."""
        return bool(_NO_OBJECT.fullmatch(self.text))


class TooManyKeysError(Exception):
    """An object has more than MAX_KEYS entries; the text is its path, with keys by their names."""


def named_path(decode: Decode, raw: bytes, path: str) -> str:
    """Return the path with the keys by their names; `decode` fails with `raw` at the path.

    TooManyKeysError: an object in the path has more than MAX_KEYS entries.
    """
    named, rest = "", path
    steps: list[str | int] = []
    while ANY_KEY in rest:
        before, _, rest = rest.partition(ANY_KEY)
        steps += _steps(before)
        written = path[: len(path) - len(rest)]
        try:
            raw, key = _reduced(decode, raw, steps, written)
        except TooManyKeysError:
            raise TooManyKeysError(named + before) from None
        steps.append(key)
        named += f"{before}.{key or _EMPTY}"
    return named + rest


def _reduced(decode: Decode, raw: bytes, steps: Sequence[str | int], written: str) -> tuple[bytes, str]:
    """Return the JSON with the first failing entry alone in the object at `steps`, and the entry's key.

    `written` is how errors write the path of that entry. The entry is found by bisection, in a few more decodings.
    """
    entries = list(_entries.decode(_at(raw, steps)).items())
    if len(entries) > MAX_KEYS:
        raise TooManyKeysError
    while len(entries) > 1:
        half = entries[: len(entries) // 2]
        entries = half if _fails(decode, _replaced(raw, steps, dict(half)), written) else entries[len(half) :]
    return _replaced(raw, steps, dict(entries)), entries[0][0]


def _fails(decode: Decode, raw: bytes, written: str) -> bool:
    try:
        decode(raw)
    except msgspec.ValidationError as error:
        return Failure.of(error).path.startswith(written)
    return False


def _at(raw: bytes, steps: Sequence[str | int]) -> bytes:
    for step in steps:
        inner = _entries.decode(raw)[step] if isinstance(step, str) else _items.decode(raw)[step]
        raw = bytes(inner)
    return raw


def _replaced(raw: bytes, steps: Sequence[str | int], entries: Mapping[str, msgspec.Raw]) -> bytes:
    """Return the JSON with these entries alone in the object at `steps`."""
    if not steps:
        return msgspec.json.encode(entries)
    step, *rest = steps
    if isinstance(step, str):
        fields = _entries.decode(raw)
        fields[step] = msgspec.Raw(_replaced(bytes(fields[step]), rest, entries))
        return msgspec.json.encode(fields)
    items = _items.decode(raw)
    items[step] = msgspec.Raw(_replaced(bytes(items[step]), rest, entries))
    return msgspec.json.encode(items)


def _steps(path: str) -> list[str | int]:
    """Return the steps of a path such as `.tags[0]`; names of fields have neither a dot nor a bracket."""
    names = filter(None, path.replace("[", ".[").split("."))
    return [int(name[1:-1]) if name.startswith("[") else name for name in names]


# Empty objects that PHP writes as `[]`, because its arrays stand for lists and for objects.
#
# A request that is refused because a list stands where an object is expected is looked through once, and decoded
# again.

_SPACES = b" \t\r\n"


class ObjectPlaces(NamedTuple):
    """The objects of a type. `is_object`: the value itself is one, and no list; `fields`: those in it."""

    is_object: bool
    fields: Mapping[str, "ObjectPlaces"]


def with_objects(raw: bytes, kind: Any) -> bytes:
    """Return the JSON with `{}` for each `[]` where `kind` has an object.

    A text that is not JSON is returned unchanged.
    """
    try:
        return _with_objects(raw, _object_places_of(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw


def _with_objects(raw: bytes, places: ObjectPlaces) -> bytes:
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
def _object_places_of(kind: Any) -> ObjectPlaces:
    return _object_places(msgspec.inspect.type_info(kind))


def _object_places(kind: Type) -> ObjectPlaces:
    of_value = members(kind)
    objects = [member for member in of_value if isinstance(member, StructType | DictType)]
    fields: dict[str, ObjectPlaces] = {}
    for member in objects:
        if isinstance(member, StructType):
            inner = ((field.encode_name, _object_places(field.type)) for field in member.fields)
            fields |= {name: places for name, places in inner if places.is_object or places.fields}
    return ObjectPlaces(bool(objects) and not any(isinstance(member, ListType) for member in of_value), fields)


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
    (re.compile(r"Object missing required field `(?P<field>.+)`"), Code.MISSING),
    (re.compile(r"Object contains unknown field `(?P<field>.+)`"), Code.UNKNOWN),
    (re.compile(r"Expected `str` of length >= 1"), Code.EMPTY),
    (re.compile(r"Expected `str` of length <= (?P<most>\d+)"), Code.TOO_LONG),
    (re.compile(r"Expected `(?:array|object)` of length >= 1"), Code.EMPTY),
    (re.compile(r"Expected `(?:array|object)` of length >= (?P<least>\d+)"), Code.TOO_FEW_ENTRIES),
    (re.compile(r"Expected `(?:array|object)` of length <= (?P<most>\d+)"), Code.TOO_MANY_ENTRIES),
    (re.compile(r"Invalid enum value .*(?<!\\)(?:\\\\)*\\x00.*"), Code.HAS_NUL),
    (re.compile(r"Invalid enum value (?P<value>.+)"), Code.NOT_ALLOWED),
    (re.compile(r"(?:Number|Integer value) out of range"), Code.NUMBER_TOO_LARGE),
]
"""Patterns of msgspec's error texts: its errors have no fields. `field` is one step further down the path."""

_OUT_OF_RANGE = re.compile(r"Expected `int` [<>]=")
_STEP = re.compile(r"\.([^.\[]+)|(\[)[^\]]+\]")
_EXPECTED = re.compile(r"Expected `([^`]+)`")


def decode(kind: Any, raw: bytes | msgspec.Raw, at: str = "") -> Any:
    """Decode JSON; `at` is its path in the request. Where the type has integers, strings of digits are integers too;
    where it has objects, `[]` is an empty one.

    InputError names the first field that does not fit the type. All fields before it fit, so the JSON is rewritten only
    if that field is an integer that may be written in another way.
    """
    try:
        return _without_nul(_decoder(kind).decode(raw), raw, at)
    except msgspec.ValidationError as error:
        failure = Failure.of(error)
        if failure.is_of_object and (changed := with_objects(bytes(raw), kind)) != bytes(raw):
            return decode(kind, changed, at)
        if not failure.is_of_integer:
            raise _refusal(error, kind, at, bytes(raw)) from None
        return _decode_plain(kind, rewritten(bytes(raw), kind, at), at)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(f"{at or 'the body'} is not JSON that can be read") from None


def _decode_plain(kind: Any, raw: bytes, at: str) -> Any:
    try:
        return _without_nul(_decoder(kind).decode(raw), raw, at)
    except msgspec.ValidationError as error:
        if Failure.of(error).is_of_object and (changed := with_objects(raw, kind)) != raw:
            return _decode_plain(kind, changed, at)
        raise _refusal(error, kind, at, raw) from None


def _without_nul(value: Any, raw: bytes | msgspec.Raw, at: str) -> Any:
    """Return the value. InputError names a text in it with NUL; a Raw field is checked when it is decoded, if ever."""
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
        raise _refusal(error, kind, at, msgspec.json.encode(value)) from None


def _refusal(error: msgspec.ValidationError, kind: Any, at: str, raw: bytes) -> InputError:
    """Return the error in `raw`, with the field's path."""
    text, path, is_of_key = Failure.of(error)
    try:
        place = (at + named_path(_decoder(kind).decode, raw, path)).lstrip(".")
    except TooManyKeysError as of_object:
        return InputError(Code.TOO_MANY_ENTRIES, at=f"{at}{of_object}".lstrip(".") or "the body", most=MAX_KEYS)
    if is_of_key:
        place += ": a key"
    if _OUT_OF_RANGE.match(text) and (bounds := _bounds(kind, path)):
        return InputError(Code.OUT_OF_RANGE, at=place, least=bounds.ge or 0, most=bounds.le or 0)
    for pattern, code in _SHAPES:
        if found := pattern.fullmatch(text):
            fields = found.groupdict()
            inner = f".{fields.pop('field')}" if "field" in fields else ""
            values = {name: _field(each) for name, each in fields.items()}
            return InputError(code, at=(place + inner).lstrip("."), **values)
    if found := _EXPECTED.match(text):
        kinds = [word for word in found[1].split(" | ") if word != "null"]
        wanted = " or ".join(_WORDS.get(word, word) for word in kinds)
        return InputError(Code.WRONG_TYPE, at=place or "the body", kinds=wanted)
    return InputError(Code.UNREADABLE, at=place, problem=text)


def _field(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _bounds(kind: Any, path: str) -> msgspec.inspect.IntType | None:
    """Return the bounded integer type at the path, if there is one."""
    found = members(msgspec.inspect.type_info(kind))
    for name, _ in _STEP.findall(path):
        found = [member for parent in found for child in _children(parent, name) for member in members(child)]
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
