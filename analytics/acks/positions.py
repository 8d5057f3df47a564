"""Where a reader of acknowledgements is: the next record, and the place in it, of each partition; as opaque text."""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec

from services.runtime.errors import InputError

START = "0"
_CHECK_BYTES = 4
_LONGEST = 64 * 1024
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Place(NamedTuple):
    """The first record of a partition, and the row in it, that was not read yet. The log alone decides, so places
    outlive any rebuild."""

    offset: int
    row: int


Places = Mapping[int, Place]
"""By partition; one that is missing is read from its beginning."""


def encode(appkey: str, places: Places) -> str:
    """Text of the characters of base64 for URLs."""
    if not places:
        return START
    flat = [number for partition, place in sorted(places.items()) for number in (partition, *place)]
    body = msgspec.msgpack.encode(flat)
    return urlsafe_b64encode(_check(appkey, body) + body).decode().rstrip("=")


def decode(appkey: str, text: str) -> dict[int, Place]:
    """InputError: `encode` did not make this text for this app."""
    if text == START:
        return {}
    try:
        blob = urlsafe_b64decode(text[:_LONGEST] + "=" * (-len(text) % 4))
        flat = msgspec.msgpack.decode(blob[_CHECK_BYTES:], type=list[_Number])
    except (ValueError, msgspec.DecodeError):
        flat = []
    places = {
        partition: Place(offset, index)
        for partition, offset, index in zip(flat[::3], flat[1::3], flat[2::3], strict=False)
    }
    if not all(one < other for one, other in pairwise(places)) or encode(appkey, places) != text:
        raise InputError("pos is no position that was given out for this app")
    return places


def _check(appkey: str, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(appkey.encode())).to_bytes(_CHECK_BYTES, "big")
