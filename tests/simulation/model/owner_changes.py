"""The times at which owners of shards changed, noted while the log stores records: compaction removes some later."""

from collections.abc import Callable, Sequence

from protos.runtime.v1.instances_pb2 import InstanceFact
from services.log.port import NewRecord, Partition
from services.replica.instances import INSTANCES_TOPIC


class OwnerChanges:
    """Notes when each new owner of a role first said in the log that it takes over.

    `note` takes the place of the function that a Broker is given, which it calls; `now_ms` is right.
    """

    def __init__(
        self, role: str, note: Callable[[Partition, int, Sequence[NewRecord]], None], now_ms: Callable[[], int]
    ) -> None:
        self._role = role
        self._note = note
        self._now_ms = now_ms
        self._epochs: set[tuple[int, int]] = set()
        self.times_ms: list[int] = []

    def note(self, partition: Partition, offset: int, new_records: Sequence[NewRecord]) -> None:
        self._note(partition, offset, new_records)
        if partition.topic == INSTANCES_TOPIC:
            for new_record in new_records:
                alive = InstanceFact.FromString(new_record.value).alive
                if alive.role == self._role and alive.epoch and (alive.shard, alive.epoch) not in self._epochs:
                    self._epochs.add((alive.shard, alive.epoch))
                    self.times_ms.append(self._now_ms())
