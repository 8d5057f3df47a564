"""Header blocks (HPACK, RFC 7541): literals for requests, and the :status and Retry-After of responses.

The server is asked for a dynamic table of size 0. Once it acknowledges that, the two are read without decoding the
other fields. Until then, and from servers that use the table anyway, the hpack package decodes whole blocks, which
doubles the CPU time per push.
"""

from functools import lru_cache
from typing import NamedTuple

import hpack

MAX_LIST_BYTES = 16_384
POST_HTTPS = b"\x83\x87"
"""The fields :method POST and :scheme https, indexed in the static table (RFC 7541, appendix A)."""

NO_TABLE = b"\x20"
"""Prefix of a client's first block: table size 0, which keeps within every limit the server may set."""

_STATUSES = {8: b"200", 9: b"204", 10: b"206", 11: b"304", 12: b"400", 13: b"404", 14: b"500"}
"""Static table entries named :status, by index (RFC 7541, appendix A)."""

_READ = {**dict.fromkeys(_STATUSES, b":status"), 53: b"retry-after"}
"""Names of the fields that are read, by their indexes in the static table."""

_NAMES = frozenset(_READ.values())

_STATIC_ENTRIES = 61
_MAX_SHORT_LENGTH = 127


class HeaderError(Exception):
    """The header block cannot be decoded."""


class ResponseHead(NamedTuple):
    """The fields of a response's header block that are read.

    `status`: 0 if it is no number; None if there is none or several, as in trailers. `retry_after`: "" for none.
    """

    status: int | None
    retry_after: str = ""


class HeadReader:
    """Reads the header blocks of one connection, in order."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_LIST_BYTES)

    def head(self, block: bytes) -> ResponseHead:
        """Read a response's headers, or trailers. HeaderError: the block is invalid."""
        try:
            found = _scan(block, self._decoder.header_table_size == 0)
        except (IndexError, ValueError):
            found = self._decode(block)
        if len(found) == 1 and found[0][0] == b":status":
            return ResponseHead(_number(found[0][1]))
        statuses = [_number(value) for name, value in found if name == b":status"]
        waits = [value for name, value in found if name == b"retry-after"]
        return ResponseHead(
            statuses[0] if len(statuses) == 1 else None, waits[0].decode("latin-1") if len(waits) == 1 else ""
        )

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        try:
            fields = self._decoder.decode(block, raw=True)
        except (hpack.HPACKError, UnicodeDecodeError) as error:
            raise HeaderError(str(error)) from error
        return [(_bytes(name), _bytes(value)) for name, value in fields]


def literal(name: bytes, value: bytes, secret: bool = False) -> bytes:
    """Encode a field that is not added to the table; `secret`: intermediaries must not add it either."""
    return _named(name, secret) + _encoded(value)


@lru_cache(maxsize=256)
def _named(name: bytes, secret: bool) -> bytes:
    return (b"\x10" if secret else b"\x00") + _encoded(name)


def _scan(block: bytes, no_table: bool) -> list[tuple[bytes, bytes]]:
    """The fields :status and retry-after of a block that neither uses nor changes the table.

    ValueError, IndexError: other blocks.
    """
    found = []
    at, end = 0, len(block)
    while at < end:
        first = block[at]
        if first & 0x80:
            index, at = first & 0x7F, at + 1
            if not 0 < index <= _STATIC_ENTRIES:
                raise ValueError
            if index in _STATUSES:
                found.append((b":status", _STATUSES[index]))
            elif index in _READ:
                found.append((_READ[index], b""))
            continue
        if first & 0xE0 == 0x20 or (first & 0x40 and not no_table):
            raise ValueError
        index, at = _name_index(block, at, 0x3F if first & 0x40 else 0x0F)
        encoded, at = _string(block, at) if index == 0 else (b"", at)
        value, at = _string(block, at)
        name = _READ.get(index, b"") if index else _decoded(encoded)
        if name in _NAMES:
            found.append((name, _decoded(value)))
    return found


def _name_index(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A literal's index of its name in the static table (0: the name follows), and the position after it."""
    index, at = block[at] & mask, at + 1
    if index == mask:
        index, at = index + block[at], at + 1
    if index > _STATIC_ENTRIES:
        raise ValueError
    return index, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """An encoded string including its length, and the position after it. ValueError: it is longer than 126 bytes."""
    length = block[at] & _MAX_SHORT_LENGTH
    end = at + 1 + length
    if length == _MAX_SHORT_LENGTH or end > len(block):
        raise ValueError
    return block[at:end], end


@lru_cache(maxsize=256)
def _decoded(encoded: bytes) -> bytes:
    """Decode one string, by wrapping it into a field for hpack."""
    try:
        ((_, value),) = hpack.Decoder().decode(b"\x0f\x00" + encoded, raw=True)
    except (hpack.HPACKError, UnicodeDecodeError):
        raise ValueError from None
    return _bytes(value)


def _number(status: bytes) -> int:
    """The status as a number, 0 if it is not three digits."""
    return int(status) if len(status) == 3 and status.isdigit() else 0


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _encoded(text: bytes) -> bytes:
    """A string with its length as an integer of 7-bit prefix (RFC 7541, section 5.1)."""
    length = len(text)
    if length < _MAX_SHORT_LENGTH:
        return bytes((length,)) + text
    length -= _MAX_SHORT_LENGTH
    prefix = bytearray((_MAX_SHORT_LENGTH,))
    while length >= 128:
        prefix.append(length & 127 | 128)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + text
