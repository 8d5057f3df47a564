"""The names of enum values in the analytics store and in audits."""

from functools import lru_cache

from google.protobuf.descriptor import EnumDescriptor

_UNKNOWN = "unknown_"


@lru_cache(maxsize=1024)
def enum_name(enum: EnumDescriptor, number: int, prefix: str) -> str:
    """Return `sent` for `OUTCOME_KIND_SENT`, and `unknown_N` for a number that only a newer writer knows."""
    value = enum.values_by_number.get(number)
    return value.name.removeprefix(prefix).lower() if value else f"{_UNKNOWN}{number}"


@lru_cache(maxsize=1024)
def enum_number(enum: EnumDescriptor, name: str, prefix: str) -> int:
    """Return the number of a name that `enum_name` gave; 0 for any other name."""
    value = enum.values_by_name.get(f"{prefix}{name.upper()}")
    if value is not None:
        return int(value.number)
    unknown = name.removeprefix(_UNKNOWN)
    return int(unknown) if unknown != name and unknown.isdecimal() else 0
