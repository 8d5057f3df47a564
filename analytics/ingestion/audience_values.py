"""The devices of an audience by each value of each attribute, as bitmaps in the form that ClickHouse keeps."""

import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from analytics.ingestion.attributes import DeviceAttributes, DictionaryEncoder

_LARGE = b"\x01"
_SEVEN_BITS = 127


def by_value(
    attributes: DeviceAttributes, appkey: str, partition: int, audience: BitMap
) -> list[list[tuple[str, bytes]]]:
    """For each attribute, the values that devices of the audience have by now, and who has them."""
    numbers = np.frombuffer(audience.to_array(), np.uint32)
    codes = attributes.codes(appkey, partition, numbers)
    return [
        list(_bitmaps(numbers, of_attribute, vocabulary))
        for of_attribute, vocabulary in zip(codes, attributes.vocabularies, strict=True)
    ]


def _bitmaps(
    numbers: npt.NDArray[Any], codes: npt.NDArray[Any], vocabulary: DictionaryEncoder
) -> Iterator[tuple[str, bytes]]:
    order = np.argsort(codes, kind="stable")
    in_order = codes[order]
    starts = [0, *(np.flatnonzero(np.diff(in_order)) + 1).tolist()]
    for start, some in zip(starts, np.split(numbers[order], starts[1:]), strict=True):
        if len(some):
            devices = BitMap(array.array("I", some.tobytes()))
            devices.run_optimize()
            yield vocabulary.string(int(in_order[start])), _state(devices.serialize())


def _state(bitmap: bytes) -> bytes:
    """A groupBitmap: a byte for its kind, the length in bytes of seven bits, the bitmap."""
    length, left = bytearray(), len(bitmap)
    while left > _SEVEN_BITS:
        length.append(left & _SEVEN_BITS | 128)
        left >>= 7
    return _LARGE + bytes([*length, left]) + bitmap
