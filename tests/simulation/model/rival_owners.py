"""Checks that no two living processes own one shard, unless something has delayed their records in the log."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from protos.runtime.v1.instances_pb2 import InstanceFact
from services.runtime.log.port import NewRecord, Partition
from services.runtime.ownership.directory import INSTANCES_TOPIC
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.process import CURRENT, Process

_DELAYS_RECORDS = frozenset(
    {
        *("pause", "slow_reads", "rebuild"),
        *("log_unavailable", "log_cut_off", "log_half_cut_off", "log_faults", "log_trimmed"),
    }
)
"""Kinds of faults during which a process that is not killed writes or reads late, or not at all."""

_NOT_COMPACTED_S = 1.0
"""A log keeps all records of its latest segment, so those that are younger than this are always there. The simulated
broker may remove them at once."""

_PARTITION = Partition(INSTANCES_TOPIC, 0)


class _Stored(NamedTuple):
    at_s: float
    offset: int


class _Rivals(NamedTuple):
    """Two processes that own a shard at the same time, the later one since `at_s`."""

    at_s: float
    shard: str
    former: str
    later: str


class RivalOwners:
    """Notes each process that announces an epoch while another living process of its shard has one.

    `note` takes the place of the function that a Broker is given, which it calls.
    """

    def __init__(
        self,
        note: Callable[[Partition, int, Sequence[NewRecord]], None],
        now_s: Callable[[], float],
        broker: Callable[[], Broker],
    ) -> None:
        """`broker` returns the Broker once it is made."""
        self._note = note
        self._now_s = now_s
        self._broker = broker
        self._stored: dict[str, list[_Stored]] = defaultdict(list)
        self._owners: dict[str, dict[str, Process]] = defaultdict(dict)
        self._rivals: list[_Rivals] = []

    def note(self, partition: Partition, offset: int, new_records: Sequence[NewRecord]) -> None:
        self._note(partition, offset, new_records)
        process = CURRENT.get()
        if partition == _PARTITION and process is not None:
            for at, new_record in enumerate(new_records, offset):
                self._note_fact(InstanceFact.FromString(new_record.value), at, process)

    def found(self, faults: Sequence[Fault], log_slowness: int) -> Iterator[str]:
        """Yield a finding for each two owners before which nothing had delayed records.

        `faults`: with the times at which they happened. `log_slowness`: how many times longer than usual the log takes.
        """
        begun_s = min((fault.at_s for fault in faults if fault.kind in _DELAYS_RECORDS), default=float("inf"))
        for each in self._rivals:
            if each.at_s < begun_s and log_slowness == 1:
                yield f"{each.later} has taken over {each.shard} at {each.at_s:.3f} s from {each.former}, which runs"

    def _note_fact(self, fact: InstanceFact, offset: int, process: Process) -> None:
        if fact.WhichOneof("fact") == "left":
            for owners in self._owners.values():
                owners.pop(fact.instance, None)
            return
        self._stored[fact.instance].append(_Stored(self._now_s(), offset))
        shard = f"{fact.alive.role}-{fact.alive.shard}"
        owners = self._owners[shard]
        if not fact.alive.epoch:
            owners.pop(fact.instance, None)
        elif fact.instance not in owners:
            self._rivals += [
                _Rivals(self._now_s(), shard, other.name, process.name)
                for instance, other in owners.items()
                if other.is_alive and self._is_readable(instance)
            ]
            owners[fact.instance] = process

    def _is_readable(self, instance: str) -> bool:
        """Return whether the log still has the latest records of an instance, so that another one could read them."""
        kept = {record.offset for record in self._broker().records(_PARTITION)}
        latest = [each for each in self._stored[instance] if each.at_s > self._now_s() - _NOT_COMPACTED_S]
        return all(each.offset in kept for each in latest)
