"""The simulated event log's broker: what it stores, and who gets an answer."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from services.log.port import NewRecord, Partition, Record
from services.log.topics import Topics
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.halves import is_in_half
from tests.simulation.kernel.process import CURRENT, ProcessKilled

_FEW = 5
"""Records of a page over a slow line."""

OnGrown = Callable[[], None]


class _Stored:
    """The records of one partition by their offsets; None in place of those that compaction has removed.

    Clients are given none before the offset `first`; checks see these too.
    """

    __slots__ = ("first", "latest", "records", "replaced", "times_ms")

    def __init__(self) -> None:
        self.first = 0
        self.records: list[Record | None] = []
        self.times_ms: list[int] = []
        self.latest: dict[bytes, int] = {}
        self.replaced: list[int] = []

    @property
    def end(self) -> int:
        return len(self.records)

    def add(self, record: Record, time_ms: int, *, is_compacted: bool) -> None:
        """Append a record; where the topic is compacted it replaces the latest one of its key."""
        self.records.append(record)
        self.times_ms.append(time_ms)
        if is_compacted:
            if record.key in self.latest:
                self.replaced.append(self.latest[record.key])
            self.latest[record.key] = record.offset


class _Slow(NamedTuple):
    """How much longer a process waits for answers about half of the partitions; `half` "": about any."""

    seconds: float
    half: str


class Broker:
    """The event log that all simulated processes share; a SimulatedLog is a client of it.

    Clients get no answer while it is not available, or while their process is cut off. Readers see only what is stored.
    """

    def __init__(
        self,
        topics: Topics,
        partitions: int,
        behaviour: Behaviour,
        note: Callable[[Partition, int, Sequence[NewRecord]], None] = lambda partition, offset, new_records: None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`note` is called with the partition, the first offset and the records of each append; `now_ms` is right."""
        self.topics = topics
        self.partitions = partitions
        self.behaviour = behaviour
        self._is_available = True
        self._cut_off: set[str] = set()
        self._half_cut_off: dict[str, str] = {}
        self._slow_s: dict[str, _Slow] = {}
        self._fatal: dict[str, tuple[bool, Callable[[], object]]] = {}
        self._note = note
        self._now_ms = now_ms
        self._stored: dict[Partition, _Stored] = {}
        self._ends: dict[Partition, int] = {}
        self._listeners: dict[Partition, dict[int, OnGrown]] = defaultdict(dict)
        self._numbers = 0

    @property
    def answers(self) -> bool:
        """Whether the process that asks gets an answer."""
        process = CURRENT.get()
        return self._is_available and (process is None or process.name not in self._cut_off)

    def reaches(self, partition: Partition) -> bool:
        """Whether the process that asks for the partition gets an answer, once the broker answers it at all."""
        process = CURRENT.get()
        half = self._half_cut_off.get(process.name) if process is not None and self._half_cut_off else None
        return half is None or not is_in_half(half, partition)

    def extra_s(self, partitions: Collection[Partition]) -> float:
        """By how much longer the process that asks about these partitions waits for its answer."""
        process = CURRENT.get()
        slow = self._slow_s.get(process.name) if process is not None and self._slow_s else None
        if slow is None or (slow.half and not any(is_in_half(slow.half, partition) for partition in partitions)):
            return 0.0
        return slow.seconds

    def page_size(self, wanted: int, partitions: Collection[Partition]) -> int:
        """Return how many records the next page of these partitions may hold: few over a slow line."""
        size = self.behaviour.page_size(wanted)
        return min(size, _FEW) if self._slow_s and self.extra_s(partitions) else size

    def set_available(self, is_available: bool) -> None:
        """Answer everybody or nobody from now on."""
        self._is_available = is_available

    def cut_off(self, name: str) -> None:
        """Give the processes of this name no answer."""
        self._cut_off.add(name)

    def cut_half_off(self, name: str, half: str) -> None:
        """Give the processes of this name no answer about half of the partitions, which `half` chooses.

        So it is where they do not reach one of a cluster's servers, which leads these partitions.
        """
        self._half_cut_off[name] = half

    def reach_again(self, *names: str) -> None:
        """Answer the processes of these names again, or all where none is given."""
        for name in names or (*self._cut_off, *self._half_cut_off):
            self._cut_off.discard(name)
            self._half_cut_off.pop(name, None)
        for partition in sorted(self._stored):  # which entries were made first may depend on the order of a set
            self._tell(partition)

    def slow_down(self, name: str, seconds: float, half: str = "") -> None:
        """Let the processes of this name wait for so long for each answer to what they read.

        `half` as for `cut_half_off`; "": whatever the partition.
        """
        self._slow_s[name] = _Slow(seconds, half)

    def speed_up(self, name: str) -> None:
        """Take back what `slow_down` has arranged."""
        self._slow_s.pop(name, None)

    def kill_at_append(self, name: str, *, is_stored: bool, then: Callable[[], object] = lambda: None) -> None:
        """Kill the process of this name at its next append: just before its records are stored, or just after.

        `then` is called when that happens.
        """
        self._fatal[name] = (is_stored, then)

    def spare(self) -> None:
        """Take back what `kill_at_append` and `slow_down` have arranged."""
        self._fatal.clear()
        self._slow_s.clear()

    def reached(self, *, is_stored: bool) -> None:
        """Note that the process that runs now appends, and kill it if that was arranged."""
        process = CURRENT.get()
        at, then = self._fatal.get(process.name, (None, None)) if process is not None else (None, None)
        if process is not None and at is is_stored and then is not None:
            del self._fatal[process.name]
            then()
            process.kill()
            raise ProcessKilled

    def store(self, partition: Partition, new_records: Sequence[NewRecord]) -> int:
        """Append the records; return the offset of the first."""
        stored = self._of(partition)
        base = stored.end
        self._note(partition, base, new_records)
        compacted = self.topics[partition.topic].compacted
        for offset, new_record in enumerate(new_records, base):
            record = Record(*partition, offset, new_record.key, new_record.value)
            stored.add(record, self._now_ms(), is_compacted=compacted)
        self._ends[partition] = stored.end
        if stored.replaced and self.behaviour.compacts():
            self._compact(stored)
        self._tell(partition)
        return base

    def put(self, record: Record) -> None:
        """Store a record that another log held, at its offset: compaction may have removed those before it."""
        partition = Partition(record.topic, record.partition)
        stored = self._of(partition)
        missing = record.offset - stored.end
        stored.records += [None] * missing
        stored.times_ms += [self._now_ms()] * missing
        stored.add(record, self._now_ms(), is_compacted=self.topics[record.topic].compacted)
        self._ends[partition] = stored.end

    def page(self, positions: Mapping[Partition, int], limit: int) -> tuple[list[Record], dict[Partition, int]]:
        """Return the next records of the partitions, in their order, and the next offset of each partition read."""
        found: list[Record] = []
        reached: dict[Partition, int] = {}
        for partition, start in positions.items():
            stored = self._of(partition)
            at = start
            while at < len(stored.records) and len(found) < limit:
                record = stored.records[at]
                if record is not None:
                    found.append(record)
                at += 1
                reached[partition] = at
        return found, reached

    def stored_ms(self, record: Record) -> int:
        """Return when a record was stored, which no wrong clock changes."""
        return self._of(Partition(record.topic, record.partition)).times_ms[record.offset]

    def first(self, partition: Partition) -> int:
        return self._of(partition).first

    def end(self, partition: Partition) -> int:
        return self._ends.get(partition, 0)

    def records(self, partition: Partition) -> list[Record]:
        """Return all records that were stored, without those that compaction has removed."""
        return [record for record in self._of(partition).records if record is not None]

    def partitions_stored(self) -> list[Partition]:
        """Return the partitions that have records."""
        return sorted(self._stored)

    def last(self, partition: Partition) -> Record | None:
        stored = self._of(partition)
        return next((record for record in reversed(stored.records[stored.first :]) if record is not None), None)

    def trim(self, partition: Partition, before: int) -> None:
        """Remove the records before an offset, as retention does."""
        stored = self._of(partition)
        stored.first = max(stored.first, min(before, stored.end))

    def restore(self) -> None:
        """Bring back all records that `trim` has removed, as from a backup."""
        for stored in self._stored.values():
            stored.first = 0

    def behind(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the positions in the partitions that hold more, and that the process which asks reaches."""
        ends = self._ends
        found = {partition: start for partition, start in positions.items() if start != ends.get(partition, 0)}
        if not self._half_cut_off:
            return found
        return {partition: start for partition, start in found.items() if self.reaches(partition)}

    def listen(self, partitions: Collection[Partition], on_grown: OnGrown) -> Callable[[], object]:
        """Call the function when one of the partitions has grown or can be reached again; return what ends this."""
        self._numbers += 1
        number = self._numbers
        for partition in partitions:
            self._listeners[partition][number] = on_grown
        return lambda: [self._listeners[partition].pop(number, None) for partition in partitions]

    def _tell(self, partition: Partition) -> None:
        for on_grown in list(self._listeners[partition].values()):
            on_grown()

    def _of(self, partition: Partition) -> _Stored:
        stored = self._stored.get(partition)
        if stored is None:
            stored = self._stored[partition] = _Stored()
        return stored

    @staticmethod
    def _compact(stored: _Stored) -> None:
        for offset in stored.replaced:
            stored.records[offset] = None
        stored.replaced.clear()
