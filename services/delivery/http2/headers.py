"""Header blocks (HPACK, RFC 7541): what a client has to write, and the one field of an answer that matters.

The peer is asked to keep no table of headers. Once it says that it does not, the status is read without unpacking the
rest; until then, and from a peer that keeps one all the same, blocks are unpacked by the hpack package, which doubles
the cost of a push.
"""

from functools import lru_cache

import hpack

MAX_LIST_BYTES = 16_384
NO_TABLE = b"\x20"
"""First in a client's first block: no header is ever added to the table, so that every limit is kept."""

_STATUSES = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}
"""Places in the static table, all with the name :status."""

_STATIC = 61
_LONG = 127


class HeaderError(Exception):
    """The block cannot be understood."""


class StatusReader:
    """Reads one connection's blocks in order."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_LIST_BYTES)

    def status(self, block: bytes) -> int | None:
        """The status; None where there is none or several, as in trailers. HeaderError: it is no header block."""
        try:
            statuses = _glance(block, self._decoder.header_table_size == 0)
        except (IndexError, ValueError):
            statuses = self._unpack(block)
        return statuses[0] if len(statuses) == 1 else None

    def _unpack(self, block: bytes) -> list[int]:
        try:
            fields = self._decoder.decode(block, raw=True)
        except (hpack.HPACKError, UnicodeDecodeError) as error:
            raise HeaderError(str(error)) from error
        return [_number(value) for name, value in fields if name == b":status"]


def literal(name: bytes, value: bytes, secret: bool = False) -> bytes:
    """A header field that is not added to the table; `secret`: nor by anybody on the way."""
    return (b"\x10" if secret else b"\x00") + _text(name) + _text(value)


def _glance(block: bytes, no_table: bool) -> list[int]:
    """The statuses in a block that leaves the table as it is. ValueError, IndexError: this one may not."""
    statuses = []
    at, end = 0, len(block)
    while at < end:
        first = block[at]
        if first & 0x80:
            index, at = first & 0x7F, at + 1
            if not 0 < index <= _STATIC:
                raise ValueError
            if index in _STATUSES:
                statuses.append(_STATUSES[index])
            continue
        if first & 0xE0 == 0x20 or (first & 0x40 and not no_table):
            raise ValueError
        index, at = _index(block, at, 0x3F if first & 0x40 else 0x0F)
        name, at = _string(block, at) if index == 0 else (b"", at)
        value, at = _string(block, at)
        if index in _STATUSES or (index == 0 and _said(name) == b":status"):
            statuses.append(_number(_said(value)))
    return statuses


def _index(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A literal's place in the static table, 0 for none, and where it goes on."""
    index, at = block[at] & mask, at + 1
    if index == mask:
        index, at = index + block[at], at + 1
    if index > _STATIC:
        raise ValueError
    return index, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """A string as it is packed, with its length, and where it goes on."""
    length = block[at] & _LONG
    end = at + 1 + length
    if length == _LONG or end > len(block):
        raise ValueError
    return block[at:end], end


@lru_cache(maxsize=256)
def _said(packed: bytes) -> bytes:
    """A string unpacked."""
    try:
        ((_, value),) = hpack.Decoder().decode(b"\x0f\x00" + packed, raw=True)
    except (hpack.HPACKError, UnicodeDecodeError):
        raise ValueError from None
    return value if isinstance(value, bytes) else value.encode()


def _number(status: bytes | str) -> int:
    """0 for what is no status."""
    return int(status) if len(status) == 3 and status.isdigit() else 0


def _text(text: bytes) -> bytes:
    length = len(text)
    if length < _LONG:
        return bytes((length,)) + text
    length -= _LONG
    prefix = bytearray((_LONG,))
    while length >= 128:
        prefix.append(length & 127 | 128)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + text
