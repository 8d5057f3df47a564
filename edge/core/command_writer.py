"""Commands and facts of the edge into the log."""

from collections.abc import Sequence

from protos.runtime.v1.log_pb2 import Position
from services.domain.topics import TOPICS
from services.runtime.errors import InputError
from services.runtime.log.port import MAX_RECORD_BYTES, Log, NewRecord, Partition
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.metrics import APPENDED
from services.runtime.rpc.peers import Peers


class Writer:
    """Appends, and waits where the caller of a request must see what it changed."""

    def __init__(self, log: Log, peers: Peers) -> None:
        self._log = log
        self._peers = peers
        self._appended = {topic: APPENDED.labels(topic) for topic in TOPICS}

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        """Their offsets, once they are durable. InputError: a record is larger than the log takes."""
        for new_record in new_records:
            if len(new_record.key) + len(new_record.value) > MAX_RECORD_BYTES:
                raise InputError(f"the request is too large: it makes a record of {len(new_record.value)} bytes")
        reached(Point.COMMAND_CHECKED)
        offsets = await self._log.append(new_records)
        reached(Point.COMMAND_APPENDED)
        for new_record in new_records:
            self._appended[new_record.topic].inc()
        return offsets

    async def settle(self, new_record: NewRecord) -> None:
        """Append one, and return when every role that answers for it has applied it; DeadlineError as for Peers."""
        await self.settle_all([new_record])

    async def settle_all(self, new_records: Sequence[NewRecord]) -> None:
        """As `settle`, for many in one append."""
        offsets = await self.append(new_records)
        last: dict[Partition, int] = {}
        for new_record, offset in zip(new_records, offsets, strict=True):
            partition = Partition(new_record.topic, new_record.partition)
            last[partition] = max(last.get(partition, -1), offset)
        unplaced = {
            Partition(new_record.topic, new_record.partition)
            for new_record, offset in zip(new_records, offsets, strict=True)
            if offset < 0
        }
        if unplaced:
            last |= {partition: end - 1 for partition, end in (await self._log.ends(unplaced)).items()}
        await self._peers.wait_applied(Position(topic=p.topic, partition=p.number, offset=at) for p, at in last.items())
