"""One request's audience, resolved in slices of bounded work."""

from collections.abc import Iterator, Sequence

from pyroaring import BitMap

from protos.push.v1.push_pb2 import Filter
from protos.targeting.v1.targeting_pb2 import PartitionAudience, ResolveResponse
from services.domain.topics import SESSIONS
from services.targeting.filter_evaluation import MustBeProven, matching
from services.targeting.state import TargetingState


class Resolution:
    """The audience of a checked filter in each of some owned partitions; each partition's is that of one moment.

    `advance` runs in the thread that owns the state; between two calls facts may be applied.
    """

    def __init__(
        self,
        state: TargetingState,
        appkey: str,
        wanted: Filter,
        partitions: Sequence[int],
        must_be_proven: MustBeProven = lambda tag: False,
    ) -> None:
        self.response = ResolveResponse()
        self._state = state
        self._appkey = appkey
        self._wanted = wanted
        self._partitions = partitions
        self._must_be_proven = must_be_proven
        self._steps = self._resolve()

    def advance(self, operations: int) -> bool:
        """Do about `operations` bitmap operations, at least one step; return whether the response is complete."""
        spent = 0
        for work in self._steps:
            spent += work
            if spent >= operations:
                return False
        return True

    def _resolve(self) -> Iterator[int]:
        for number in self._partitions:
            partition = self._state.partitions[number]
            index = partition.apps.get(self._appkey)
            hour = self._state.hour
            devices = (yield from matching(index, self._wanted, hour, self._must_be_proven)) if index else BitMap()
            devices.run_optimize()
            part = PartitionAudience(
                partition=number,
                bitmap=devices.serialize(),
                count=len(devices),
                attributes_until=1 + partition.offsets.get(SESSIONS.name, 0),
            )
            self.response.partitions.append(part)
            yield 1
