"""The status board: the latest announced status of each process of the installation, and its recent rates."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protos.runtime.v1.processes_pb2 import ProcessFact, ProcessStatus
from services.log.port import LOG_UNAVAILABLE, Log, Partition
from services.process.clock import Clock
from services.process.retries import retry_until_available
from services.replica.dead_letters import UNUSABLE, leave_out
from services.replica.own_status import PROCESSES_TOPIC, STATUS_INTERVAL_S

SILENT_MS = 4 * STATUS_INTERVAL_S * 1000
"""A process that has announced nothing for this time is silent: it was killed, hangs, or is cut off from the log."""

KEPT_MS = 10 * 60_000
"""Time for which rates and silent processes are kept."""

STEP_MS = 2 * STATUS_INTERVAL_S * 1000
"""The time that one point of a rate's history covers: two announcements, so that none of them is left out."""

STEPS = KEPT_MS // STEP_MS
MAX_PROCESSES = 1_000

Rates = Mapping[str, float]
"""Changes of counters a second, by name; `work ROLE` is what a role handles. `devices` is a number, not a rate."""


@dataclass(frozen=True)
class Process:
    """A process and its latest announcement, made at `told_ms` by its clock and read at `heard_ms` by the board's."""

    id: str
    status: ProcessStatus
    told_ms: int
    heard_ms: int
    rates: Rates

    def is_silent(self, now_ms: int) -> bool:
        return now_ms - self.heard_ms > SILENT_MS


class StatusBoard:
    """Folds announcements into the status of each process; forgets processes that are silent for ten minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._processes: dict[str, Process] = {}
        self._history: deque[tuple[int, dict[str, Rates]]] = deque(maxlen=STEPS)
        self._changed = asyncio.Event()

    @property
    def change(self) -> asyncio.Event:
        """An event that the next announcement sets. Get it before asking, then wait for it."""
        return self._changed

    async def publish(self, fact: ProcessFact) -> None:
        """Apply the announcement of a process that publishes to this board and not to the log."""
        self.apply(fact)

    def apply(self, fact: ProcessFact, *, is_new: bool = True) -> None:
        """Apply one announcement; a repeated one changes nothing. `is_new`: it was made now, whatever its time says."""
        told_ms, now_ms = fact.meta.time_ms, self._clock.now_ms()
        heard_ms = now_ms if is_new else min(told_ms, now_ms)
        known = self._processes.get(fact.process)
        kind = fact.WhichOneof("fact")
        is_repeated = known is not None and kind == "status" and told_ms <= known.told_ms
        if heard_ms <= now_ms - KEPT_MS or is_repeated:
            return
        match kind:
            case "status":
                rates = _rates(known, fact.status, told_ms)
                self._processes[fact.process] = Process(fact.process, fact.status, told_ms, heard_ms, rates)
                self._note(fact.process, heard_ms, rates)
            case "left":
                self._processes.pop(fact.process, None)
            case None:  # of a newer version
                return
        self._forget(now_ms)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def processes(self) -> Sequence[Process]:
        """Return the processes that have not left, and have not been silent for more than ten minutes."""
        self._forget(self._clock.now_ms())
        return list(self._processes.values())

    def present(self) -> Sequence[Process]:
        """Return the processes that are not silent."""
        now_ms = self._clock.now_ms()
        return [process for process in self._processes.values() if not process.is_silent(now_ms)]

    @property
    def heard_ms(self) -> int:
        """The time of the latest announcement of any process; 0 for none."""
        return max((process.heard_ms for process in self._processes.values()), default=0)

    def rate(self, name: str) -> float:
        """Return the present rate of all processes together."""
        return sum(process.rates.get(name, 0) for process in self.present())

    def history(self, name: str) -> list[float]:
        """Return the rates of all processes together in the last ten minutes, the newest last; 0 where unknown."""
        last = self._clock.now_ms() // STEP_MS
        by_step = {step: sum(rates.get(name, 0) for rates in of.values()) for step, of in self._history}
        return [by_step.get(step, 0) for step in range(last - STEPS, last)]

    def _note(self, process: str, heard_ms: int, rates: Rates) -> None:
        step = heard_ms // STEP_MS
        if not self._history or step > self._history[-1][0]:
            self._history.append((step, {}))
        for known, by_process in reversed(self._history):
            if known == step:
                by_process[process] = rates
                return

    def _forget(self, now_ms: int) -> None:
        gone = [each.id for each in self._processes.values() if each.heard_ms <= now_ms - KEPT_MS]
        oldest_first = sorted(self._processes.values(), key=lambda each: each.heard_ms)
        gone += [each.id for each in oldest_first[: max(0, len(oldest_first) - MAX_PROCESSES)]]
        for process in gone:
            self._processes.pop(process, None)


def _rates(before: Process | None, status: ProcessStatus, told_ms: int) -> Rates:
    """Return the rates since the announcement before; without one, only `devices`."""
    rates = {"devices": float(status.connected_devices)}
    if before is None:
        return rates
    seconds = (told_ms - before.told_ms) / 1000
    then = _counters(before.status)
    return rates | {name: max(0, count - then.get(name, 0)) / seconds for name, count in _counters(status).items()}


def _counters(status: ProcessStatus) -> dict[str, int]:
    counts = status.counts
    found = {"pushes": counts.pushes, "sent": counts.sent, "received": counts.received, "faults": counts.faults}
    found["requests"] = sum(each.count for each in counts.requests)
    found["refused"] = sum(each.count for each in counts.requests if each.result)
    found |= {f"result {each.result}": each.count for each in counts.requests if each.result}
    for role in status.roles:
        found[f"work {role.role}"] = found.get(f"work {role.role}", 0) + role.work
    return found


# Follows the topic `processes`, so that the status board has all processes of the installation.

PROCESSES_PARTITION = Partition(PROCESSES_TOPIC, 0)

RECENT_RECORDS = 5_000
"""Number of latest records that are read at the start: ten minutes of forty processes."""


class StatusBoardFollower:
    """Service that applies the log's announcements to the status board. No other service waits until it is ready."""

    name = "board of processes"

    def __init__(self, log: Log, board: StatusBoard) -> None:
        self._log = log
        self._board = board

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        ends = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.ends([PROCESSES_PARTITION]))
        end = ends[PROCESSES_PARTITION]
        start = {PROCESSES_PARTITION: max(0, end - RECENT_RECORDS)}
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.open(start))
        try:
            while True:
                for record in await retry_until_available(LOG_UNAVAILABLE, reader.read):
                    try:
                        self._board.apply(ProcessFact.FromString(record.value), is_new=record.offset >= end)
                    except UNUSABLE as error:
                        leave_out(self.name, record, error)
        finally:
            await reader.close()


# How many processes run a role now, for limits of which each has an equal share.


class Replicas:
    """Counts the present processes of a role and its instances, each at least one: the process that asks.

    Several processes are one instance if they share their counts, as the workers of an edge do. A process is present
    if its latest announcement is at most SILENT_MS older than the latest one of all processes: while the log is
    unavailable, none becomes absent. Without a board there is one process.
    """

    def __init__(self, board: StatusBoard | None, role: str) -> None:
        self._board = board
        self._role = role
        self._counted_at: asyncio.Event | None = None
        self._processes = 1
        self._instances = 1

    def processes(self) -> int:
        self._count()
        return self._processes

    def instances(self) -> int:
        self._count()
        return self._instances

    def _count(self) -> None:
        if self._board is None or self._counted_at is self._board.change:
            return
        self._counted_at = self._board.change
        present = [
            each
            for each in self._board.processes()
            if not each.is_silent(self._board.heard_ms) and any(role.role == self._role for role in each.status.roles)
        ]
        self._processes = max(1, len(present))
        self._instances = max(1, len({each.status.instance or each.id for each in present}))
