"""The names of enum values in the analytics store and in audits."""

from functools import lru_cache

from google.protobuf.descriptor import EnumDescriptor


@lru_cache(maxsize=1024)
def enum_name(enum: EnumDescriptor, number: int, prefix: str) -> str:
    """Return `sent` for `OUTCOME_KIND_SENT`, and `unknown_N` for a number that only a newer writer knows."""
    value = enum.values_by_number.get(number)
    return value.name.removeprefix(prefix).lower() if value else f"unknown_{number}"
