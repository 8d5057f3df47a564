"""Dedupe window: the message ids of recent pushes, by which a repeated command is recognised."""

import msgspec
from pyroaring import BitMap64

_GENERATION = 500_000


class DedupeWindow:
    """Two bounded sets of message ids, of timed pushes and of others: at least the last 500,000 added to each.

    An edge repeats an append within half a minute. Scheduling repeats what it may have sent before a crash when it
    starts again, and until then any number of other pushes may have come.
    """

    def __init__(self) -> None:
        self._timed, self._others = _Generations(), _Generations()

    def __contains__(self, msgid: int) -> bool:
        return msgid in self._others or msgid in self._timed

    def add(self, msgid: int, *, is_timed: bool) -> None:
        (self._timed if is_timed else self._others).add(msgid)

    def dump(self) -> bytes:
        return msgspec.msgpack.encode([*self._others.dump(), *self._timed.dump()])

    def load(self, blob: bytes) -> None:
        """Load a dump; one of an earlier release holds a single set."""
        recent, older, *of_timed = msgspec.msgpack.decode(blob, type=list[bytes])
        self._others.load(recent, older)
        if of_timed:
            self._timed.load(*of_timed)


class _Generations:
    """A set of at least the last 500,000 ids that were added, and at most twice as many."""

    def __init__(self) -> None:
        self._recent, self._older = BitMap64(), BitMap64()

    def __contains__(self, msgid: int) -> bool:
        return msgid in self._recent or msgid in self._older

    def add(self, msgid: int) -> None:
        self._recent.add(msgid)
        if len(self._recent) >= _GENERATION:
            self._older, self._recent = self._recent, BitMap64()

    def dump(self) -> tuple[bytes, bytes]:
        return self._recent.serialize(), self._older.serialize()

    def load(self, recent: bytes, older: bytes) -> None:
        self._recent, self._older = BitMap64.deserialize(recent), BitMap64.deserialize(older)
