"""Limit of a device's string tags, for app servers and for the device itself."""

from collections.abc import Sequence

from services.runtime.errors import InputError

MAX_DEVICE_STAGS = 1000
"""Upper bound of a device's string tags. One that has more, from a former version, keeps them and gets no others."""


def has_room(known: Sequence[str], added: Sequence[str]) -> bool:
    """Return whether a device with the string tags `known` may get those in `added`."""
    return len({*known, *added}) <= max(MAX_DEVICE_STAGS, len(known))


def check_room(known: Sequence[str], added: Sequence[str]) -> None:
    """Check a device's own request to add string tags. InputError: it would have too many."""
    if not has_room(known, added):
        raise InputError(f"input error: stags: a device has at most {MAX_DEVICE_STAGS} string tags")
