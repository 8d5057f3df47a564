"""Claims in the log: what a claim gives its writer follows from the claims before it, so from the log's order alone.

Neither clocks, time-outs nor pauses matter: a claimant that hangs between its append and the look at the earlier
claims finds the same claims later. A claim's offset is a number that no other claim has, and grows, so it can serve as
an epoch.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from services.log.port import Log, NewRecord, Partition, Record
from services.replica.catch_up import read_until

Decision = TypeVar("Decision")


class Claims:
    """The claims of one partition, folded by `fold` in the order of the log, each once.

    The first fold begins at the last `window` offsets, and leaves out what retention has removed.
    """

    def __init__(self, role: str, log: Log, partition: Partition, window: int, fold: Callable[[Record], None]) -> None:
        self._role = role
        self._log = log
        self._partition = partition
        self._window = window
        self._fold = fold
        self._next: int | None = None

    async def refresh(self) -> None:
        """Fold the claims that are in the log now."""
        end = (await self._log.ends([self._partition]))[self._partition]
        await self._fold_until(end)

    async def append(self, claims: Sequence[NewRecord], decide: Callable[[int], Decision]) -> list[Decision]:
        """Append claims; return `decide(offset)` for each, called once every claim before the first one is folded."""
        offsets = await self._log.append(claims)
        await self._fold_until(first := min(offsets))
        decisions = [decide(offset) for offset in offsets]
        if self._next == first and offsets == list(range(first, first + len(offsets))):
            self._fold_own(claims, first)
        return decisions

    def _fold_own(self, claims: Sequence[NewRecord], first: int) -> None:
        """Fold own claims at consecutive offsets, so that they need not be read."""
        for offset, claim in enumerate(claims, first):
            self._fold(Record(claim.topic, claim.partition, offset, claim.key, claim.value))
        self._next = first + len(claims)

    async def _fold_until(self, end: int) -> None:
        if self._next is None:
            begin = (await self._log.begins([self._partition]))[self._partition]
            self._next = max(begin, end - self._window)
        if self._next >= end:
            return
        starts, ends = {self._partition: self._next}, {self._partition: end}
        async with aclosing(read_until(self._role, self._log, starts, ends)) as batches:
            async for records, offsets in batches:
                for record in records:
                    self._fold(record)
                self._next = offsets[self._partition]
