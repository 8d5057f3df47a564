"""SchedulingService: look-ups of timed tasks and idempotency claims, and waiting until a task is sent."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from protos.scheduling.v1.scheduling_pb2 import (
    GetClaimRequest,
    GetClaimResponse,
    GetStoredBytesRequest,
    GetStoredBytesResponse,
    GetTaskRequest,
    GetTaskResponse,
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskStatus,
)
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceServicer
from services.errors import CarillonError, Code, NotFoundError, UnavailableError
from services.net.rpc.server import Context
from services.process import background
from services.replica.follower import Follower
from services.scheduling.state import Status, StoredTask
from services.scheduling.store import TaskLists, TaskTable

# Waiting until tasks without a set time are sent.


class UnsentTasks:
    """The tasks without a set time that callers wait for; each change of the state costs one query for all of them."""

    def __init__(self, follower: Follower, committed: TaskTable) -> None:
        self._follower = follower
        self._tasks = committed
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def wait_sent(self, task_key: str) -> None:
        """Return once the task is sent. The caller sets the deadline."""
        future = self._waiting.get(task_key)
        if future is None:
            future = self._waiting[task_key] = asyncio.get_running_loop().create_future()
        if self._watching is None or self._watching.done():
            self._watching = background.start("watch for sent tasks", self._watch())
        await asyncio.shield(future)

    async def _watch(self) -> None:
        try:
            while self._waiting:
                change = self._follower.applied.change
                unsent = await self._follower.query(self._tasks.at_once)
                for task_key in [key for key in self._waiting if key not in unsent]:
                    self._waiting.pop(task_key).set_result(None)
                if self._waiting:
                    await change.wait()
        except UnavailableError:
            return  # scheduling is stopping
        finally:
            while self._waiting:
                self._waiting.popitem()[1].cancel()


Answer = TypeVar("Answer")

_STATUS = {
    Status.WAITING: TaskStatus.TASK_STATUS_UNSENT,
    Status.PAUSED: TaskStatus.TASK_STATUS_UNSENT,
    Status.FELL_DUE: TaskStatus.TASK_STATUS_SENT,
    Status.SENT: TaskStatus.TASK_STATUS_SENT,
    Status.CANCELLED: TaskStatus.TASK_STATUS_CANCELLED,
    Status.EXPIRED: TaskStatus.TASK_STATUS_EXPIRED,
    Status.FAILED: TaskStatus.TASK_STATUS_FAILED,
}


class SchedulingServicer(SchedulingServiceServicer):
    """Answers calls about tasks and claims, in the follower's thread; `committed` reads over a connection of its own.

    Raises UnavailableError while the follower stands by, and until it has caught up with the log: the store may know
    neither the newest tasks nor, while it is rebuilt, any claim, and then a push would be sent again.
    """

    def __init__(self, follower: Follower, committed: TaskTable, lists: TaskLists) -> None:
        self._follower = follower
        self._tasks = committed
        self._lists = lists
        self._unsent = UnsentTasks(follower, committed)

    async def GetTask(self, request: GetTaskRequest, context: Context) -> GetTaskResponse:
        task = await self._query(self._tasks.find, request.task_key)
        if task is None or task.scheduled.scheduled.at_once or not task.is_of(request.appkeys):
            raise NotFoundError(Code.NO_SUCH_TASK)
        return GetTaskResponse(task=_task_message(task))

    async def ListTasks(self, request: ListTasksRequest, context: Context) -> ListTasksResponse:
        return await self._query(self._page, request)

    async def GetClaim(self, request: GetClaimRequest, context: Context) -> GetClaimResponse:
        found = await self._query(self._tasks.find_claim, request.key)
        if found is None:
            raise NotFoundError("this idempotency key has no claim")
        if found.is_unsent:
            await self._unsent.wait_sent(found.task_key)
            found = await self._query(self._tasks.find_claim, request.key) or found
        if found.failure:
            raise CarillonError(f"the push was not sent: {found.failure}")
        return GetClaimResponse(claim=found.claim, task_key=found.task_key, expires_ms=found.expires_ms)

    async def GetStoredBytes(self, request: GetStoredBytesRequest, context: Context) -> GetStoredBytesResponse:
        stored = await self._query(self._tasks.waiting_bytes, list(request.appkeys))
        return GetStoredBytesResponse(bytes=stored)

    async def _query(self, query: Callable[..., Answer], *arguments: object) -> Answer:
        await self._follower.tenure.check_query()
        return await self._follower.query(query, *arguments)

    def _page(self, request: ListTasksRequest) -> ListTasksResponse:
        places = self._waiting_first(request) if request.waiting_first else self._by_creation(request)
        if request.keys_only:
            tasks = places
        else:
            tasks = [_task_message(task) for place in places if (task := self._tasks.find(place.task_key))]
        return ListTasksResponse(tasks=tasks, total=self._lists.count_of_apps(list(request.appkeys)))

    def _by_creation(self, request: ListTasksRequest) -> list[Task]:
        keys = self._lists.keys_of_apps(
            list(request.appkeys), descending=request.descending, offset=request.offset, limit=request.limit
        )
        return [Task(task_key=key, created_ms=created_ms) for created_ms, key in keys]

    def _waiting_first(self, request: ListTasksRequest) -> list[Task]:
        page = self._lists.waiting_first(list(request.appkeys), offset=request.offset, limit=request.limit)
        waiting = [Task(task_key=key, due_ms=due_ms) for due_ms, key in page.waiting]
        return waiting + [Task(task_key=key, created_ms=created_ms) for created_ms, key in page.ended]


def _task_message(task: StoredTask) -> Task:
    scheduled = task.scheduled.scheduled
    return Task(
        task_key=task.task_key,
        created_ms=scheduled.created_ms,
        due_ms=scheduled.due_ms,
        status=_STATUS[task.status],
        pushes=scheduled.pushes,
        cancelled_by_event_id=task.cancelled_by,
    )
