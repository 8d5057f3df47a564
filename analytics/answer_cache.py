"""Cache of answers that need not include the newest records; valid until the ingestion changes their source rows."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from analytics.store.changes import StoreChanges
from services.runtime.process.clock import Clock

KEPT_MS = 15_000
"""Greatest age of an answer: some change with time alone, such as the average of today's connections, but slowly."""

MAX_KEPT = 200

A = TypeVar("A", bound=Message)


class Question(Protocol):
    """A request whose answer may lack the records of some milliseconds."""

    max_age_ms: int

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...


class _Kept(NamedTuple):
    """An answer, the latest change of the store before it was made, and the apps or tables that it is made of."""

    made_ms: int
    change: int
    names: Sequence[str]
    answer: Any


class AnswerCache:
    """The latest MAX_KEPT answers, by question."""

    def __init__(self, changes: StoreChanges, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._kept: OrderedDict[tuple[type[Question], bytes], _Kept] = OrderedDict()

    async def answer(
        self, question: Question, make: Callable[[], Awaitable[A]], names: Callable[[A], Sequence[str]]
    ) -> A:
        """Return the kept answer to the same question if it is still valid, or else make one.

        `names` returns the apps or tables that an answer is made of.
        """
        key = type(question), question.SerializeToString(deterministic=True)
        now_ms = self._clock.now_ms()
        kept = self._kept.get(key)
        if kept is None or now_ms - kept.made_ms >= KEPT_MS or not self._changes.is_same_since(kept.change, kept.names):
            change = self._changes.latest
            made = await make()
            kept = self._kept[key] = _Kept(now_ms, change, names(made), made)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        copy: A = type(kept.answer)()
        copy.CopyFrom(kept.answer)
        return copy
