"""Read positions of acknowledgements: how far each partition was read, and their encoding as opaque text."""

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


class ReadPosition(NamedTuple):
    """The first record of a partition, and the row in it, that was not read yet.

    Both come from the log alone, so positions stay valid when the store is rebuilt.
    """

    offset: int
    row: int


ReadPositions = Mapping[int, ReadPosition]
"""Positions by partition; a partition that is missing is read from its beginning."""


def encode(appkey: str, positions: ReadPositions) -> str:
    """Return the positions as text in URL-safe base64, with a checksum of the app and the positions."""
    if not positions:
        return START
    flat = [number for partition, position in sorted(positions.items()) for number in (partition, *position)]
    body = msgspec.msgpack.encode(flat)
    return urlsafe_b64encode(_check(appkey, body) + body).decode().rstrip("=")


def decode(appkey: str, text: str) -> dict[int, ReadPosition]:
    """Return the positions of a text. InputError: `encode` did not return this text for this app."""
    if text == START:
        return {}
    try:
        blob = urlsafe_b64decode(text[:_LONGEST] + "=" * (-len(text) % 4))
        flat = msgspec.msgpack.decode(blob[_CHECK_BYTES:], type=list[_Number])
    except (ValueError, msgspec.DecodeError):
        flat = []
    positions = {
        partition: ReadPosition(offset, index)
        for partition, offset, index in zip(flat[::3], flat[1::3], flat[2::3], strict=False)
    }
    if not all(one < other for one, other in pairwise(positions)) or encode(appkey, positions) != text:
        raise InputError("pos is no position that was given out for this app")
    return positions


def _check(appkey: str, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(appkey.encode())).to_bytes(_CHECK_BYTES, "big")
