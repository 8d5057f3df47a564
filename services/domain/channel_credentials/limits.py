"""Bounds of an app at a vendor of phones: marketing messages of a device a day, and messages a second."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from services.domain.channel_credentials.fields import CredentialField, FieldKind, FieldValue, words
from services.errors import Code, InputError

_CAP, _SPEED = "daily_cap", "speed"
_MAX_CAP, _MAX_SPEED = 100, 1_000_000


class VendorLimits(NamedTuple):
    """`daily_cap`: marketing messages that a device gets a day. `per_s`: messages a second. 0: any number."""

    daily_cap: int = 0
    per_s: int = 0


def _reader(name: str, most: int) -> Callable[[str, str], FieldValue]:
    def read(value: str, at: str) -> FieldValue:
        text = value.strip()
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if text and not (is_number and 1 <= int(text) <= most):
            raise InputError(Code.UNREADABLE, at=at, problem=f"write a number from 1 to {most}, or nothing")
        return FieldValue({name: text})

    return read


LIMIT_FIELDS = (
    CredentialField(
        _CAP,
        FieldKind.TEXT,
        _reader(_CAP, _MAX_CAP),
        words("Marketing messages a day"),
        words("How many of them a device gets by this vendor a day; others wait for its own connection. Empty: any."),
    ),
    CredentialField(
        _SPEED,
        FieldKind.TEXT,
        _reader(_SPEED, _MAX_SPEED),
        words("Messages a second"),
        words("At most so many are sent to the vendor, by all processes together. Empty: as many as it takes."),
    ),
)
"""The fields that the forms of all vendors end with."""

LIMITS_SHOWN: Mapping[str, str] = {_CAP: words("Marketing messages a day"), _SPEED: words("Messages a second")}


def limits_of(settings: Mapping[str, str]) -> VendorLimits:
    """Return the limits from the settings of credentials."""
    return VendorLimits(int(settings.get(_CAP) or 0), int(settings.get(_SPEED) or 0))
