"""Read your own writes: the log positions that a role has applied, and waiting for them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceServicer
from services.log.port import Partition
from services.net.rpc.server import Context


class AppliedPositions:
    """The next offset that a role will apply in each partition that it reads, and the ends of the facts it produced."""

    def __init__(self, reads: Iterable[Partition] = ()) -> None:
        """`reads`: the partitions that the role reads; nothing in them counts as applied before the first `advance`."""
        self._next: dict[Partition, int] = dict.fromkeys(reads, 0)
        self._produced: dict[Partition, int] = {}
        self._changed = asyncio.Event()
        self._waiting: dict[Partition, dict[asyncio.Future[None], int]] = {}

    def advance(self, applied: Mapping[Partition, int], produced: Mapping[Partition, int] | None = None) -> None:
        """Set the next offsets of partitions that were applied, and of the facts that were produced meanwhile."""
        self._next.update(applied)
        self._produced.update(produced or {})
        self._changed.set()
        self._changed = asyncio.Event()
        for partition, next_offset in applied.items():
            for waiting, offset in self._waiting.get(partition, {}).items():
                if offset < next_offset and not waiting.done():
                    waiting.set_result(None)

    def reach(self, ends: Mapping[Partition, int]) -> None:
        """Raise the next offsets of these partitions to the ends; one that is beyond its end stays."""
        if behind := {partition: end for partition, end in ends.items() if not self.has(partition, end - 1)}:
            self.advance(behind)

    def interrupt(self, error: Exception) -> None:
        """Let all waits for positions fail with this error."""
        for of_partition in self._waiting.values():
            for waiting in of_partition:
                if not waiting.done():
                    waiting.set_exception(error)

    def has(self, partition: Partition, offset: int) -> bool:
        """Return whether the record was applied; True also for partitions that the role does not read."""
        return self._next.get(partition, offset + 1) > offset

    def has_all(self, ends: Mapping[Partition, int]) -> bool:
        """Return whether all records before these ends were applied."""
        return all(end == 0 or self.has(partition, end - 1) for partition, end in ends.items())

    def next_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the next offset of each of these partitions that the role reads."""
        return {partition: self._next[partition] for partition in partitions if partition in self._next}

    @property
    def change(self) -> asyncio.Event:
        """An event that the next advance sets. Get it before reading the state, then wait for it."""
        return self._changed

    async def wait(self, positions: Iterable[tuple[Partition, int]]) -> None:
        """Return once every given record was applied. The caller sets the deadline."""
        for partition, offset in positions:
            if not self.has(partition, offset):
                await self._wait(partition, offset)

    async def _wait(self, partition: Partition, offset: int) -> None:
        """Wait for one record. An advance wakes the callers that it concerns, and no other."""
        of_partition = self._waiting.setdefault(partition, {})
        waiting = asyncio.get_running_loop().create_future()
        of_partition[waiting] = offset
        try:
            await waiting
        finally:
            del of_partition[waiting]

    def produced(self, topic: str, number: int) -> int:
        """Return the offset after the last fact produced in the partition; 0 for none."""
        return self._produced.get(Partition(topic, number), 0)

    def produced_in(self, numbers: Iterable[int]) -> list[Position]:
        """Return the positions of the last facts produced in the partitions with these numbers."""
        wanted = set(numbers)
        return [
            Position(topic=partition.topic, partition=partition.number, offset=end - 1)
            for partition, end in self._produced.items()
            if partition.number in wanted and end > 0
        ]


class PositionsServicer(PositionsServiceServicer):
    """Answers calls that wait for positions.

    It waits for the role's followers in order; each must also have applied the facts that earlier followers produced.
    """

    def __init__(self, *followers: AppliedPositions, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises UnavailableError where another process has to be asked. It is called before and after the
        wait: a record that was written after another process took over is known to that one alone."""
        self._followers = followers
        self._check = check

    async def Await(self, request: AwaitRequest, context: Context) -> AwaitResponse:
        self._check()
        positions = list(request.positions)
        for applied in self._followers:
            await applied.wait((Partition(p.topic, p.partition), p.offset) for p in positions)
            produced = applied.produced_in(p.partition for p in positions)
            positions += produced
        self._check()
        return AwaitResponse(produced=positions[len(request.positions) :])
