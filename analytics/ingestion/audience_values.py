"""Divides the devices of an audience by their values of each attribute, as bitmaps in ClickHouse's serialised form."""

import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from analytics.ingestion.attributes import DeviceAttributes, DictionaryEncoder

_LARGE = b"\x01"
_SEVEN_BITS = 127


def bitmaps_by_value(
    attributes: DeviceAttributes, appkey: str, partition: int, audience: BitMap
) -> list[list[tuple[str, bytes]]]:
    """Return, for each attribute, the values that devices of the audience have now, each with their bitmap."""
    numbers = np.frombuffer(audience.to_array(), np.uint32)
    codes = attributes.codes(appkey, partition, numbers)
    return [
        list(_bitmaps(numbers, of_attribute, encoder))
        for of_attribute, encoder in zip(codes, attributes.encoders, strict=True)
    ]


def _bitmaps(
    numbers: npt.NDArray[Any], codes: npt.NDArray[Any], encoder: DictionaryEncoder
) -> Iterator[tuple[str, bytes]]:
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    starts = [0, *(np.flatnonzero(np.diff(sorted_codes)) + 1).tolist()]
    for start, of_code in zip(starts, np.split(numbers[order], starts[1:]), strict=True):
        if len(of_code):
            devices = BitMap(array.array("I", of_code.tobytes()))
            devices.run_optimize()
            yield encoder.string(int(sorted_codes[start])), _group_bitmap(devices.serialize())


def _group_bitmap(bitmap: bytes) -> bytes:
    """Return the state of ClickHouse's `groupBitmap`: one byte for its kind, the length as a varint, the bitmap."""
    length, left = bytearray(), len(bitmap)
    while left > _SEVEN_BITS:
        length.append(left & _SEVEN_BITS | 128)
        left >>= 7
    return _LARGE + bytes([*length, left]) + bitmap
