"""Dedupe window: the message ids of recent pushes, by which a repeated command is recognised."""

import msgspec
from pyroaring import BitMap64

_GENERATION = 500_000


class DedupeWindow:
    """A bounded set of message ids: at least the last 500,000 that were added, at most twice as many."""

    def __init__(self) -> None:
        self._recent = BitMap64()
        self._older = BitMap64()

    def __contains__(self, msgid: int) -> bool:
        return msgid in self._recent or msgid in self._older

    def add(self, msgid: int) -> None:
        self._recent.add(msgid)
        if len(self._recent) >= _GENERATION:
            self._older, self._recent = self._recent, BitMap64()

    def dump(self) -> bytes:
        return msgspec.msgpack.encode((self._recent.serialize(), self._older.serialize()))

    def load(self, blob: bytes) -> None:
        recent, older = msgspec.msgpack.decode(blob, type=tuple[bytes, bytes])
        self._recent, self._older = BitMap64.deserialize(recent), BitMap64.deserialize(older)
