"""Dedupe window: the message ids of recent pushes, by which a repeated command is recognised."""

from enum import IntEnum

import msgspec
from pyroaring import BitMap64

from protos.push.v1.push_pb2 import PushCommand

_GENERATION = 500_000
_SCHEDULING = "scheduling"


class PushSource(IntEnum):
    """What appends a push, and may append it again: a front end, or scheduling for a task.

    A task of a push under an idempotency key that is not timed is sent at once.
    """

    FRONT_END = 0
    TIMED_TASK = 1
    TASK_AT_ONCE = 2

    @classmethod
    def of(cls, command: PushCommand) -> "PushSource":
        if command.send.task_key:
            return cls.TIMED_TASK
        return cls.TASK_AT_ONCE if command.meta.writer == _SCHEDULING else cls.FRONT_END


class DedupeWindow:
    """Bounded sets of message ids, one for each source of pushes: at least the last 500,000 added to each.

    An edge repeats an append within half a minute. Scheduling repeats what it may have sent before a crash when it
    starts again. Until then front ends may send any number of pushes, but no task is sent unless scheduling has other
    owners: then those of their shards count. Every push under an idempotency key is a task, so the tasks that are sent
    at once may be many, such as 500,000 in half an hour at 300 a second; they shorten the memory of no timed push.
    """

    def __init__(self) -> None:
        self._by_source = {source: _Generations() for source in PushSource}

    def __contains__(self, msgid: int) -> bool:
        return any(msgid in generations for generations in self._by_source.values())

    def add(self, msgid: int, source: PushSource) -> None:
        self._by_source[source].add(msgid)

    def dump(self) -> bytes:
        return msgspec.msgpack.encode([generations.dump() for generations in self._by_source.values()])

    def load(self, blob: bytes) -> None:
        dumped = msgspec.msgpack.decode(blob, type=list[tuple[bytes, bytes]])
        for generations, (recent, older) in zip(self._by_source.values(), dumped, strict=True):
            generations.load(recent, older)


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
