"""The calls that a parent process answers for a child that shares its embedded log and its port."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from protos.runtime.v1.parent_pb2 import (
    AppendRequest,
    AppendResponse,
    AskOperationsRequest,
    AskOperationsResponse,
    CheckWritableRequest,
    CheckWritableResponse,
    WatchLogRequest,
    WatchLogResponse,
    WatchProcessesRequest,
    WatchProcessesResponse,
)
from protos.runtime.v1.parent_pb2_grpc import ParentServiceServicer
from services.runtime.errors import PermissionDeniedError
from services.runtime.log.port import Log, NewRecord, Partition
from services.runtime.rpc.server import Context
from services.runtime.status.announcements import Announcements

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
