"""Whether a process is ready: its log accepts records, its followers move, and its background tasks run."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from services.runtime.errors import CarillonError, UnavailableError
from services.runtime.log.ends_history import EndsHistory
from services.runtime.log.monitored import PROBE_S, MonitoredLog
from services.runtime.log.port import Log, Partition
from services.runtime.process import background
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.metrics import LAG, LAG_SECONDS
from services.runtime.projection.positions import AppliedPositions

CHECK_S = 5
ENDED_CHECKS = 2
"""Checks after which a background task that has ended ends the process: until then /healthz says why."""

STALLED_CHECKS = 6
"""A follower is stalled when this number of checks in a row finds records waiting and no progress: after 30 s."""


class Followed(NamedTuple):
    """A follower as the health check sees it: the positions that it has applied, and the partitions that it reads.

    One that `stands_by` does not read them at present, so it is not behind in them.
    """

    name: str
    applied: AppliedPositions
    partitions: Sequence[Partition]
    stands_by: Callable[[], bool] = lambda: False


class Health:
    """Service that checks the parts of a process every few seconds. `problems` is what keeps it from being ready.

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

    def monitored(self, log: Log) -> Log:
        """Return the log that the process shall use, so that its appends are checked."""
        self._log = MonitoredLog(log)
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
        log = (self._log and self._log.problem) or self._read_problem
        return found | {"log": log} if log else found

    async def run(self, ready: asyncio.Event) -> None:
        """Check until a background task has ended, without which the process would do half of its work.

        CarillonError: it has, and the process must end, so that it is started again.
        """
        ready.set()
        known: Mapping[str, str] = {}
        last_whole = -1
        for checks in itertools.count():
            await self._clock.sleep_until(self._clock.now_ms() + CHECK_S * 1000)
            await self.check()
            if (found := self.problems()) != known:
                logger.warning("the process is not ready" if found else "the process is ready again", **found)
                known = found
            if not background.ended():
                last_whole = checks
            elif checks - last_whole >= ENDED_CHECKS:
                raise CarillonError(f"the process cannot go on without a part of it: {_in_words(background.ended())}")

    async def check(self) -> None:
        if self._log is None:
            return
        await self._log.check()
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


def _in_words(problems: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {problem}" for name, problem in problems.items())


class _WatchedFollower:
    """A follower, and where the latest checks found it."""

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
