"""The parent's embedded log in its child process: read from the file, and appended to by calls to the parent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from protos.runtime.v1.parent_pb2 import (
    AppendedRecord,
    AppendRequest,
    CheckWritableRequest,
    WatchedPartition,
    WatchLogRequest,
)
from protos.runtime.v1.parent_pb2_grpc import ParentServiceStub
from services.runtime.errors import CarillonError, DeadlineError, UnavailableError
from services.runtime.log.delegating import DelegatingLog
from services.runtime.log.port import Log, NewRecord, Partition, checked_size
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.rpc.channel import Channel

_RETRY_MS = 1000


class ParentLog(DelegatingLog):
    """The Log port of a child process: reads go to `reads`, the parent's file opened read-only, appends to the parent.

    Readers see what this process has appended at once.
    """

    def __init__(self, reads: Log, parent: Channel) -> None:
        super().__init__(reads)
        self._parent = ParentServiceStub(parent)

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        checked_size(new_records, self.topics)
        request = AppendRequest(records=[AppendedRecord(**each._asdict()) for each in new_records])
        try:
            offsets = list((await self._parent.Append(request)).offsets)
        except DeadlineError as error:
            raise UnavailableError(str(error)) from None
        with contextlib.suppress(UnavailableError):  # the append has succeeded, even if readers see it later
            await self._log.ends(Partition(each.topic, each.partition) for each in new_records)
        return offsets

    async def check_writable(self) -> None:
        try:
            await self._parent.CheckWritable(CheckWritableRequest())
        except DeadlineError as error:
            raise UnavailableError(str(error)) from None


class LogWatch:
    """Service that wakes the readers of these partitions as soon as the parent has appended records to them."""

    name = "growth of the log"

    def __init__(self, log: Log, partitions: Sequence[Partition], parent: Channel, clock: Clock) -> None:
        self._log = log
        self._partitions = partitions
        self._parent = ParentServiceStub(parent)
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            try:
                async for _ in self._parent.WatchLog(self._request()):
                    await self._log.ends(self._partitions)
            except CarillonError as error:
                logger.debug("the stream of the log's growth from the parent has ended", error=str(error))
            await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    async def _request(self) -> AsyncIterator[WatchLogRequest]:
        """Yield the one request, and leave the stream open."""
        watched = [WatchedPartition(topic=each.topic, partition=each.number) for each in self._partitions]
        yield WatchLogRequest(partitions=watched)
        await asyncio.Event().wait()
