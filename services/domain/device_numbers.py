"""Device numbers: the registry gives each device of an app and partition the number after the last one, from 0 on."""

from collections.abc import Iterable

from protos.registry.v1.apps_pb2 import Revocations
from protos.registry.v1.devices_pb2 import Device
from services.domain.revocations import RevokedKeys

MAX_NUMBER = 1 << 26
"""Upper bound of device numbers. Arrays and bitmaps over them are as long as the greatest."""

_AHEAD = 1 << 20
"""By how much a number may exceed its record's offset: the numbers in logs that were filled by hand need not begin
at 0."""


def check_device(device: Device, offset: int) -> None:
    """Check the numbers of a device whose record has this offset in `devices`, -1 where it is not appended yet.

    Each number was given out by a record of the same partition, so none is far beyond the offset. ValueError: a number
    is far beyond it.
    """
    _check([device.number, *device.former_numbers[:]], offset)


def check_revocations(revocations: Revocations) -> None:
    """Check the numbers that a record revokes.

    ValueError: a number cannot be a device's, or the numbers are no bitmap.
    """
    _check([max(0, RevokedKeys.of(revocations).end - 1)], -1)


def _check(numbers: Iterable[int], offset: int) -> None:
    bound = MAX_NUMBER if offset < 0 else min(MAX_NUMBER, offset + _AHEAD)
    if (largest := max(numbers)) >= bound:
        raise ValueError(f"device number {largest} is not dense")
