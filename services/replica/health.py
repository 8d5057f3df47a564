"""Whether a process is ready: its log accepts records, its followers move, and its background tasks run.

If the log serves no process at all, the processes stay ready: otherwise a load balancer would take out all of them, and
no process would answer.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from services.errors import CarillonError, UnavailableError
from services.log.monitored import PROBE_S, EndsHistory, LogAgeElsewhere, MonitoredLog
from services.log.port import Log, Partition
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import LAG, LAG_SECONDS
from services.replica.positions import AppliedPositions

CHECK_S = 5
ENDED_CHECKS = 2
"""Checks after which a background task that has ended ends the process: until then /healthz says why."""

STALLED_CHECKS = 6
"""A follower is stalled when this number of checks in a row finds records waiting and no progress: after 30 s."""


ELSEWHERE_CHECKS = 2
"""Checks in a row that find the log unavailable here and not elsewhere, after which this process is not ready. One is
not enough: processes do not notice at the same moment that a log is back."""

_LOG = "log"


class Followed(NamedTuple):
    """A follower as the health check sees it: the positions that it has applied, and the partitions that it reads.

    While it `stands_by` it does not read the partitions, so it is not behind in them.
    """

    name: str
    applied: AppliedPositions
    partitions: Sequence[Partition]
    stands_by: Callable[[], bool] = lambda: False


class Health:
    """Service that checks the parts of a process every few seconds. `problems` says what is wrong.

    Checks are counted, not timed: a process that was suspended has not stalled. An idle log has nothing to apply, so
    an idle follower never stalls.
    """

    name = "health"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log: MonitoredLog | None = None
        self._followers: list[_WatchedFollower] = []
        self._ends = EndsHistory()
        self._read_problem: str | None = None
        self._log_age_elsewhere: LogAgeElsewhere | None = None
        self._log_away_since_ms: int | None = None
        self._works_elsewhere = 0

    def compare_with(self, log_age_elsewhere: LogAgeElsewhere) -> None:
        """Ask `log_age_elsewhere` from now on whether a log that is unavailable here serves other processes."""
        self._log_age_elsewhere = log_age_elsewhere

    def monitored(self, log: Log) -> Log:
        """Return the log that the process shall use, so that its appends are checked."""
        self._log = MonitoredLog(log, self._clock)
        return self._log

    def records_read(self) -> int:
        """Return how many records of the log the process has read."""
        return self._log.records_read if self._log else 0

    def watch(self, followers: Sequence[Followed]) -> None:
        """Check these followers from now on; they must be ready."""
        self._followers += map(_WatchedFollower, followers)

    def problems(self) -> Mapping[str, str]:
        """Return what is wrong, in words, by the name of the part."""
        found = dict(background.ended())
        found |= {f"follower {each.name}": each.problem for each in self._followers if each.problem}
        log = self._log_problem()
        return found | {_LOG: log} if log else found

    def shared_problems(self) -> Collection[str]:
        """Return the parts in `problems` that work in no other process either, as far as is known."""
        return (_LOG,) if self._log_problem() and self._works_elsewhere < ELSEWHERE_CHECKS else ()

    def log_accepted_ms_ago(self) -> int | None:
        """Return how long ago the log accepted a record of this process; None if it never did."""
        accepted_ms = self._log.accepted_ms if self._log else None
        return None if accepted_ms is None else max(0, self._clock.now_ms() - accepted_ms)

    def _log_problem(self) -> str | None:
        return (self._log and self._log.problem) or self._read_problem

    async def run(self, ready: asyncio.Event) -> None:
        """Check at intervals until a background task has ended.

        CarillonError: a task has ended. The process must then end and be started again, or it would do half of its
        work.
        """
        ready.set()
        known: tuple[Mapping[str, str], bool] = {}, True
        last_whole = -1
        for checks in itertools.count():
            await self._clock.sleep_until(self._clock.now_ms() + CHECK_S * 1000)
            await self.check()
            found = self.problems()
            is_ready = found.keys() <= set(self.shared_problems())
            if (found, is_ready) != known:
                logger.warning(_EVENTS[bool(found), is_ready], **found)
                known = found, is_ready
            if not background.ended():
                last_whole = checks
            elif checks - last_whole >= ENDED_CHECKS:
                raise CarillonError(f"the process cannot go on without a part of it: {_in_words(background.ended())}")

    async def check(self) -> None:
        if self._log is None:
            return
        await self._log.check()
        await self._check_reading()
        await self._look_elsewhere()

    async def _check_reading(self) -> None:
        assert self._log is not None
        partitions = {partition for each in self._followers for partition in each.partitions}
        try:
            async with asyncio.timeout(PROBE_S):
                ends = await self._log.ends(partitions)
        except (TimeoutError, UnavailableError) as error:
            self._read_problem = str(error) or "the event log does not answer"
            return
        self._read_problem = None
        self._ends.note(now_ms := self._clock.now_ms(), ends)
        for each in self._followers:
            each.check(ends)
            LAG_SECONDS.labels(each.name).set(self._ends.waited_ms(now_ms, each.next_offsets) / 1000)

    async def _look_elsewhere(self) -> None:
        """While the log is unavailable here, count the checks in a row that find that it serves others.

        Where no other process answers, this process is taken for the one that is cut off.
        """
        if self._log_problem() is None:
            self._log_away_since_ms, self._works_elsewhere = None, 0
            return
        if self._log_away_since_ms is None:
            self._log_away_since_ms = self._clock.now_ms()
        if self._log_age_elsewhere is None:
            return
        age_ms = await self._log_age_elsewhere()
        away_ms = self._clock.now_ms() - self._log_away_since_ms
        self._works_elsewhere = self._works_elsewhere + 1 if age_ms is None or age_ms < away_ms else 0


_EVENTS = {
    (True, False): "the process is not ready",
    (True, True): "a part of the process does not work, and no other process does better: it stays ready",
    (False, True): "the process is ready again",
}
"""Log messages, by whether there are problems and whether the process is ready."""


def _in_words(problems: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {problem}" for name, problem in problems.items())


class _WatchedFollower:
    """A follower, and its progress at the latest checks."""

    def __init__(self, followed: Followed) -> None:
        self.name = followed.name
        self._applied = followed.applied
        self.partitions = tuple(followed.partitions)
        self._stands_by = followed.stands_by
        self._found: Mapping[Partition, int] = {}
        self._checks = 0
        self.problem: str | None = None

    @property
    def next_offsets(self) -> Mapping[Partition, int]:
        """The next offset of each partition that it reads at present."""
        return {} if self._stands_by() else self._applied.next_offsets(self.partitions)

    def check(self, ends: Mapping[Partition, int]) -> None:
        found = self.next_offsets
        lags = dict.fromkeys((partition.topic for partition in self.partitions), 0)
        for partition, offset in found.items():
            lags[partition.topic] += max(0, ends[partition] - offset)
        for topic, lag in lags.items():
            LAG.labels(self.name, topic).set(lag)
        behind = sum(lags.values())
        self._checks = self._checks + 1 if behind and found == self._found else 0
        self._found = found if behind else {}
        stalled = self._checks >= STALLED_CHECKS
        self.problem = f"stands still with {behind} records waiting" if stalled else None
