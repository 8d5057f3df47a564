"""Integers that clients write in another way: as a string of digits (`"7"`), or with a fraction of zeros (`7.0`).

A request with plain integers is decoded at once. One that does not fit its type is rewritten here and decoded again.
"""

import functools
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec.inspect
from msgspec.inspect import DictType, IntType, ListType, LiteralType, Metadata, StrType, StructType, Type, UnionType

from edge.core.parsing import canonical

MAX_DIGITS = 20
_DIGITS = re.compile(f"-?[0-9]{{1,{MAX_DIGITS}}}")
_MAX_LENGTH = 40


def rewritten(raw: bytes, kind: Any) -> bytes:
    """Return the JSON with the integers that `kind` asks for written plainly, and all else as it was."""
    return canonical.written(_plain(canonical.loads(raw), _kinds(kind)))


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


def _plain(value: Any, kinds: list[Type]) -> Any:
    match value:
        case str():
            return _plain_integer(value, kinds)
        case list():
            inner = _members_of(kind.item_type for kind in kinds if isinstance(kind, ListType))
            return [_plain(entry, inner) for entry in value]
        case dict():
            return {key: _plain(entry, _members_of(_fields(kinds, key))) for key, entry in value.items()}
        case _:
            return value


def _plain_integer(value: str, kinds: list[Type]) -> str:
    is_integer = any(isinstance(kind, IntType) or _is_integers(kind) for kind in kinds)
    is_text = any(isinstance(kind, StrType) for kind in kinds)
    if not is_integer or (is_text and not canonical.is_number(value)):
        return value
    digits = integer_text(value)
    return value if digits is None else canonical.number(digits)


def _is_integers(kind: Type) -> bool:
    return isinstance(kind, LiteralType) and all(isinstance(value, int) for value in kind.values)


def _fields(kinds: Iterable[Type], name: str) -> list[Type]:
    found: list[Type] = []
    for kind in kinds:
        match kind:
            case StructType(fields=fields):
                found += [field.type for field in fields if field.encode_name == name]
            case DictType(value_type=entry):
                found.append(entry)
    return found


@functools.cache
def _kinds(kind: Any) -> list[Type]:
    return members(msgspec.inspect.type_info(kind))


def _members_of(kinds: Iterable[Type]) -> list[Type]:
    return [member for kind in kinds for member in members(kind)]


def members(kind: Type) -> list[Type]:
    """Return the members of a union, or the type itself, without descriptions around them."""
    if isinstance(kind, Metadata):
        return members(kind.type)
    if isinstance(kind, UnionType):
        return _members_of(kind.types)
    return [kind]
