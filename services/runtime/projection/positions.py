"""Read your own writes: who has applied which log position, and waiting for it."""

import asyncio
from collections.abc import Iterable, Mapping

from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceServicer
from services.runtime.log.port import Partition
from services.runtime.rpc.server import Context


class AppliedPositions:
    """The next offset that a role will apply, for each partition it reads, and the facts it has produced so far."""

    def __init__(self) -> None:
        self._next: dict[Partition, int] = {}
        self._produced: dict[Partition, int] = {}
        self._changed = asyncio.Event()

    def advance(self, applied: Mapping[Partition, int], produced: Mapping[Partition, int] | None = None) -> None:
        """Note the next offsets of what was applied, and of what was produced while applying it."""
        self._next.update(applied)
        self._produced.update(produced or {})
        self._changed.set()
        self._changed = asyncio.Event()

    def has(self, partition: Partition, offset: int) -> bool:
        """Whether the record was applied; True also for partitions that are not read here."""
        return self._next.get(partition, offset + 1) > offset

    @property
    def change(self) -> asyncio.Event:
        """Is set when the progress next advances. Take it before looking at the state, then wait for it."""
        return self._changed

    async def wait(self, positions: Iterable[tuple[Partition, int]]) -> None:
        """Return once every given record was applied. The caller sets the deadline."""
        for partition, offset in positions:
            while not self.has(partition, offset):
                await self._changed.wait()

    def produced(self, topic: str, number: int) -> int:
        """The next offset after the last fact produced there; 0 for none."""
        return self._produced.get(Partition(topic, number), 0)

    def produced_in(self, numbers: Iterable[int]) -> list[Position]:
        """The last facts produced in those partitions, as positions."""
        wanted = set(numbers)
        return [
            Position(topic=partition.topic, partition=partition.number, offset=end - 1)
            for partition, end in self._produced.items()
            if partition.number in wanted and end > 0
        ]


class PositionsServicer(PositionsServiceServicer):
    """Serves a role's progress; several followers of one role are asked in order, each with what came before."""

    def __init__(self, *progresses: AppliedPositions) -> None:
        self._progresses = progresses

    async def Await(self, request: AwaitRequest, context: Context) -> AwaitResponse:
        positions = list(request.positions)
        for progress in self._progresses:
            await progress.wait((Partition(p.topic, p.partition), p.offset) for p in positions)
            produced = progress.produced_in(p.partition for p in positions)
            positions += produced
        return AwaitResponse(produced=positions[len(request.positions) :])
