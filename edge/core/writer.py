"""Commands and facts of the edge into the log."""

from collections.abc import Sequence

from protos.runtime.v1.log_pb2 import Position
from services.runtime.crashpoint import Point, reached
from services.runtime.errors import InputError
from services.runtime.log import MAX_RECORD_BYTES, Draft, Log, Partition
from services.runtime.metrics import APPENDED
from services.runtime.peers import Peers
from services.runtime.topics import TOPICS


class Writer:
    """Appends, and waits where the caller of a request must see what it changed."""

    def __init__(self, log: Log, peers: Peers) -> None:
        self._log = log
        self._peers = peers
        self._appended = {topic: APPENDED.labels(topic) for topic in TOPICS}

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Their offsets, once they are durable. InputError: a record is larger than the log takes."""
        for draft in drafts:
            if len(draft.key) + len(draft.value) > MAX_RECORD_BYTES:
                raise InputError(f"the request is too large: it makes a record of {len(draft.value)} bytes")
        reached(Point.COMMAND_CHECKED)
        offsets = await self._log.append(drafts)
        reached(Point.COMMAND_APPENDED)
        for draft in drafts:
            self._appended[draft.topic].inc()
        return offsets

    async def settle(self, draft: Draft) -> None:
        """Append one, and return when every role that answers for it has applied it; DeadlineError as for Peers."""
        await self.settle_all([draft])

    async def settle_all(self, drafts: Sequence[Draft]) -> None:
        """As `settle`, for many in one append."""
        offsets = await self.append(drafts)
        last: dict[Partition, int] = {}
        for draft, offset in zip(drafts, offsets, strict=True):
            partition = Partition(draft.topic, draft.partition)
            last[partition] = max(last.get(partition, -1), offset)
        unplaced = {
            Partition(draft.topic, draft.partition) for draft, offset in zip(drafts, offsets, strict=True) if offset < 0
        }
        if unplaced:
            last |= {partition: end - 1 for partition, end in (await self._log.ends(unplaced)).items()}
        await self._peers.settle(Position(topic=p.topic, partition=p.number, offset=at) for p, at in last.items())
