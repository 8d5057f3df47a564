"""Checks that no two living processes own one shard, unless something has delayed their records in the log."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from protos.runtime.v1.instances_pb2 import InstanceFact
from services.log.port import NewRecord, Partition
from services.replica.instances import INSTANCES_TOPIC, LEASE_INTERVALS
from services.replica.membership import RENEWAL_INTERVAL_S
from tests.simulation.kernel.faults import Fault, end_s
from tests.simulation.kernel.installation import shard_of
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.process import CURRENT, Process

_DELAYS_RECORDS = frozenset({"pause", "slow_reads", "rebuild", "log_cut_off", "log_half_cut_off"})
"""Kinds of faults during which their target, unless it is killed, writes or reads late, or not at all."""

_DELAYS_ALL_RECORDS = frozenset({"log_unavailable", "log_faults", "log_trimmed"})
"""Kinds of faults that do so to all processes."""

_READING_S = 1.0
"""Time within which a process has read the records that it has missed, once it may."""

_KNOWN_S = LEASE_INTERVALS * RENEWAL_INTERVAL_S + _READING_S
"""How long after such a fault two processes may still take themselves for the owner: for the lease of the former one,
and until both have read what they have missed."""

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

    def found(self, faults: Sequence[Fault], log_slowness: int, healed_s: float = float("inf")) -> Iterator[str]:
        """Yield a finding for each two owners whose records nothing had delayed.

        `faults`: with the times at which they happened; none happened, and most ended, after `healed_s`.
        `log_slowness`: how many times longer than usual the log takes.
        """
        for each in self._rivals if log_slowness == 1 else ():
            if not any(_explains(fault, each, healed_s) for fault in faults):
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


def _explains(fault: Fault, rivals: _Rivals, healed_s: float) -> bool:
    """Return whether the fault delayed records of these processes, and neither had read them all since."""
    if fault.kind not in _DELAYS_ALL_RECORDS and not (
        fault.kind in _DELAYS_RECORDS and shard_of(fault.target) == rivals.shard
    ):
        return False
    return fault.at_s < healed_s and fault.at_s <= rivals.at_s <= end_s(fault, healed_s) + _KNOWN_S
