"""Observation of a log in use: whether appends succeed, how many records are read, and where it ended lately."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence

from services.errors import UnavailableError
from services.log.port import DelegatingLog, Log, NewRecord, Partition, Reader, Record
from services.process.clock import Clock

PROBE_S = 10.0
_LATE_CHECKS = 3

LogAgeElsewhere = Callable[[], Awaitable[float | None]]
"""Returns how long ago, in ms, the log accepted a record of any other process: infinity if no process that answers
knows, None if no process answers.
"""


class MonitoredLog(DelegatingLog):
    """Wraps a log and counts the `records_read`. `problem` says in words why records cannot be appended, or is None.

    An append that fails because the log is unavailable is a problem, and so is an append that is still unanswered at
    the fourth `check` after it began. The next append that succeeds ends it. While there is a problem, `check` also
    asks the log whether it accepts records again, without appending one: a process that is not ready may get no
    requests. `accepted_ms`: when the log last accepted a record, or said that it would.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        super().__init__(log)
        self.problem: str | None = None
        self.accepted_ms: int | None = None
        self._clock = clock
        self.records_read = 0
        self._numbers = itertools.count()
        self._pending: dict[int, int] = {}
        self._checks = 0

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return _CountedReader(await self._log.open(starts), self._count)

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        number = next(self._numbers)
        self._pending[number] = self._checks
        try:
            offsets = await self._log.append(new_records)
        except UnavailableError as error:
            self.problem = str(error)
            raise
        finally:
            del self._pending[number]
        self._accepted()
        return offsets

    async def check(self) -> None:
        """Look for appends that are not answered; end a problem that is over. Call it at regular intervals."""
        self._checks += 1
        oldest = next(iter(self._pending.values()), self._checks)
        if self._checks - oldest > _LATE_CHECKS:
            self.problem = self.problem or "the event log does not answer an append"
        if self.problem is None:
            return
        try:
            async with asyncio.timeout(PROBE_S):
                await self._log.check_writable()
        except (TimeoutError, UnavailableError) as error:
            self.problem = str(error) or self.problem
        else:
            self._accepted()

    def _accepted(self) -> None:
        self.problem = None
        self.accepted_ms = self._clock.now_ms()

    def _count(self, records: int) -> None:
        self.records_read += records


class _CountedReader:
    """A reader that counts the records that it returns."""

    def __init__(self, reader: Reader, count: Callable[[int], None]) -> None:
        self._reader = reader
        self._count = count

    async def read(self, max_records: int = 5000) -> list[Record]:
        records = await self._reader.read(max_records)
        self._count(len(records))
        return records

    async def close(self) -> None:
        await self._reader.close()


# Ends of the log at recent checks, from which the age of unread records is estimated without reading them.

_KEPT = 64


class EndsHistory:
    """The ends of partitions at recent checks. The older checks are, the fewer are kept, so the history reaches far."""

    def __init__(self) -> None:
        self._checks: list[tuple[float, Mapping[Partition, int]]] = []

    def note(self, now_ms: float, ends: Mapping[Partition, int]) -> None:
        """Remember that the partitions end there now."""
        self._checks.append((now_ms, ends))
        if len(self._checks) > _KEPT:
            del self._checks[min(range(1, _KEPT), key=lambda index: self._gap(index, now_ms))]

    def _gap(self, index: int, now_ms: float) -> float:
        """Return the time between a check's neighbours, as a share of its age."""
        (before_ms, _), (own_ms, _), (after_ms, _) = self._checks[index - 1 : index + 2]
        return (after_ms - before_ms) / max(1, now_ms - own_ms)

    def waited_ms(self, now_ms: float, applied: Mapping[Partition, int]) -> int:
        """Return for how long, at least, the oldest record that is not applied has waited; 0 if all are applied."""
        since_ms = now_ms
        for noted_ms, ends in reversed(self._checks):
            if all(offset >= ends.get(partition, 0) for partition, offset in applied.items()):
                break
            since_ms = noted_ms
        return max(0, round(now_ms - since_ms))
