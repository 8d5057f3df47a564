"""Divides the devices of an audience by their values of each attribute, as bitmaps in ClickHouse's serialised form."""

import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from analytics.ingestion.attributes import AttributeHistory, DictionaryEncoder

_LARGE = b"\x01"
_SEVEN_BITS = 127


def bitmaps_by_value(
    history: AttributeHistory, appkey: str, partition: int, audience: BitMap, until: int
) -> list[list[tuple[str, bytes]]]:
    """Return, for each attribute, the values that devices of the audience had, ascending, each with their bitmap.

    `until` is the start's `attributes_until`. The bitmap of the whole audience, which is not empty, is made once: all
    attributes of a single device have it.
    """
    numbers = np.frombuffer(audience.to_array(), np.uint32)
    codes = history.codes(appkey, partition, numbers, until)
    are_equal = (codes == codes[:, :1]).all(axis=1).tolist()
    whole = _group_bitmap(numbers)
    encoders = history.attributes.encoders
    return [
        [(encoder.string(int(of_attribute[0])), whole)]
        if is_equal
        else sorted(_bitmaps(numbers, of_attribute, encoder))
        for of_attribute, is_equal, encoder in zip(codes, are_equal, encoders, strict=True)
    ]


def _bitmaps(
    numbers: npt.NDArray[Any], codes: npt.NDArray[Any], encoder: DictionaryEncoder
) -> Iterator[tuple[str, bytes]]:
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    starts = [0, *(np.flatnonzero(np.diff(sorted_codes)) + 1).tolist()]
    for start, of_code in zip(starts, np.split(numbers[order], starts[1:]), strict=True):
        yield encoder.string(int(sorted_codes[start])), _group_bitmap(of_code)


def _group_bitmap(numbers: npt.NDArray[Any]) -> bytes:
    """Return the state of ClickHouse's `groupBitmap`: one byte for its kind, the length as a varint, the bitmap."""
    devices = BitMap(array.array("I", numbers.tobytes()))
    devices.run_optimize()
    bitmap = devices.serialize()
    length, left = bytearray(), len(bitmap)
    while left > _SEVEN_BITS:
        length.append(left & _SEVEN_BITS | 128)
        left >>= 7
    return _LARGE + bytes([*length, left]) + bitmap
