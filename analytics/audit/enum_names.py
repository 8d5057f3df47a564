"""How enum values are written in the analytics store and shown to people."""

from google.protobuf.descriptor import EnumDescriptor


def enum_name(enum: EnumDescriptor, number: int, prefix: str) -> str:
    """`OUTCOME_KIND_SENT` as `sent`; a number that only a newer writer knows as `unknown_N`."""
    value = enum.values_by_number.get(number)
    return value.name.removeprefix(prefix).lower() if value else f"unknown_{number}"
