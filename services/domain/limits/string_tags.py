"""Limit of a device's string tags, for app servers and for the device itself."""

from collections.abc import Sequence

MAX_DEVICE_STAGS = 1000
"""Upper bound of a device's string tags. One that has more, from a former version, keeps them and gets no others."""


def has_room(known: Sequence[str], added: Sequence[str]) -> bool:
    """Return whether a device with the string tags `known` may get those in `added`."""
    return len({*known, *added}) <= max(MAX_DEVICE_STAGS, len(known))
