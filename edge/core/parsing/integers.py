"""Integers that clients write in another way: as a string of digits (`"7"`), or with a fraction of zeros (`7.0`).

A request with plain integers is decoded at once. One that fails at an integer is rewritten here and decoded again. Only
the fields whose types have integers are rewritten, once each, however many integers are written so; all else is passed
on as it is. A list or object of integers is rewritten entry by entry, so its length is checked before.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, Optional

import msgspec.inspect
from msgspec.inspect import DictType, IntType, ListType, LiteralType, Metadata, StrType, StructType, Type, UnionType

from edge.core.parsing import canonical
from services.domain.limits.filters import MAX_ENTRIES
from services.runtime.errors import InputError

MAX_DIGITS = 20
_DIGITS = re.compile(f"-?[0-9]{{1,{MAX_DIGITS}}}")
_MAX_LENGTH = 40
_entries = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Places(NamedTuple):
    """The places of a type that have integers; None and no fields where there are none.

    `is_integer`: the value itself is one; `is_text`: it may also be a text, so that a string of digits stays one;
    `entries`, `values`: the places in each entry of a list, and in each value of an object; `fields`: in those of a
    struct.
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
            raise InputError(f"{at or 'the body'} must have at most {MAX_ENTRIES} entries")
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
