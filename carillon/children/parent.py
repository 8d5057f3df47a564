"""Calls between `carillon up` and a child process: its embedded log, operations, and announcements of processes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

from protos.runtime.v1.parent_pb2 import (
    AppendedRecord,
    AppendRequest,
    AppendResponse,
    AskOperationsRequest,
    AskOperationsResponse,
    CheckWritableRequest,
    CheckWritableResponse,
    WatchedPartition,
    WatchLogRequest,
    WatchLogResponse,
    WatchProcessesRequest,
    WatchProcessesResponse,
)
from protos.runtime.v1.parent_pb2_grpc import ParentServiceServicer, ParentServiceStub
from protos.runtime.v1.processes_pb2 import ProcessFact
from services.errors import CarillonError, DeadlineError, PermissionDeniedError, UnavailableError
from services.log.port import DelegatingLog, Log, NewRecord, Partition, checked_size
from services.net.rpc.channel import Channel
from services.net.rpc.server import Context
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.status_board import StatusBoard

# The parent's embedded log in its child process: read from the file, and appended to by calls to the parent.

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


# The latest announcements of all processes that a parent knows, for its child process.


class Announcements:
    """Keeps the latest announcement of each process, and streams announcements to followers."""

    def __init__(self) -> None:
        self._latest: dict[str, ProcessFact] = {}
        self._changed = asyncio.Event()

    async def publish(self, fact: ProcessFact) -> None:
        """Note the announcement of a process."""
        self._latest[fact.process] = fact
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self) -> AsyncIterator[ProcessFact]:
        """Yield the latest announcement of each process, then later ones; a slow follower misses some of these."""
        seen: dict[str, ProcessFact] = {}
        while True:
            changed = self._changed
            for process, fact in list(self._latest.items()):
                if seen.get(process) is not fact:
                    seen[process] = fact
                    yield fact
            await changed.wait()


AskOperations = Callable[[str], Awaitable[tuple[int, str, bytes]]]
"""Returns the HTTP status, media type and body that the parent answers under a path of its operations."""


class ParentServicer(ParentServiceServicer):
    """Answers the child with the parent's log, announcements and operations."""

    def __init__(
        self,
        log: Log,
        announcements: Announcements,
        ask_operations: AskOperations,
        may_append: Callable[[str], bool] = lambda topic: True,
    ) -> None:
        """`may_append` returns whether the child may append to the topic."""
        self._may_append = may_append
        self._log = log
        self._announcements = announcements
        self._ask_operations = ask_operations

    async def Append(self, request: AppendRequest, context: Context) -> AppendResponse:
        records = [NewRecord(each.topic, each.partition, each.key, each.value) for each in request.records]
        for each in records:
            if not self._may_append(each.topic):
                raise PermissionDeniedError(f"this process may not append to the topic {each.topic}")
        return AppendResponse(offsets=await self._log.append(records))

    async def CheckWritable(self, request: CheckWritableRequest, context: Context) -> CheckWritableResponse:
        await self._log.check_writable()
        return CheckWritableResponse()

    async def WatchLog(
        self, requests: AsyncIterator[WatchLogRequest], context: Context
    ) -> AsyncGenerator[WatchLogResponse, None]:
        request = await anext(requests)
        ends = await self._log.ends([Partition(each.topic, each.partition) for each in request.partitions])
        reader = await self._log.open(ends)
        try:
            while True:
                # First without a read: records may have been appended before this stream began.
                yield WatchLogResponse()
                await reader.read()
        finally:
            await reader.close()

    async def WatchProcesses(
        self, requests: AsyncIterator[WatchProcessesRequest], context: Context
    ) -> AsyncGenerator[WatchProcessesResponse, None]:
        await anext(requests)
        async for fact in self._announcements.follow():
            yield WatchProcessesResponse(fact=fact)

    async def AskOperations(self, request: AskOperationsRequest, context: Context) -> AskOperationsResponse:
        status, content_type, body = await self._ask_operations(request.path)
        return AskOperationsResponse(status=status, content_type=content_type, body=body)


# Follows what the parent knows of the installation's processes, for the status board of its child process.


class ParentStatusFollower:
    """Service that applies the announcements, which the parent streams, to the status board."""

    name = "board of processes"

    def __init__(self, board: StatusBoard, parent: Channel, clock: Clock) -> None:
        self._board = board
        self._parent = ParentServiceStub(parent)
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            try:
                async for announced in self._parent.WatchProcesses(self._request()):
                    self._board.apply(announced.fact)
            except CarillonError as error:
                logger.debug("the stream of processes' statuses from the parent has ended", error=str(error))
            await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)

    async def _request(self) -> AsyncIterator[WatchProcessesRequest]:
        """Yield the one request, and leave the stream open."""
        yield WatchProcessesRequest()
        await asyncio.Event().wait()
