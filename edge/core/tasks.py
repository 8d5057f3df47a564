"""Timed tasks: read, listed and cancelled; and the cancel of broadcasts that are on their way."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import CancelPush, PushCommand
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import (
    TASK_STATUS_EXPIRED,
    TASK_STATUS_FAILED,
    TASK_STATUS_UNSENT,
    CancelTask,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskCommand,
)
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.domain.command_writer import CommandWriter, push_command, task_command
from services.domain.topics import PUSH_COMMANDS
from services.errors import Code, ConflictError, NotFoundError
from services.log.topics import partition_of
from services.replica.peers import Peers

_READ_THROUGH = 500
"""Tasks before a page that are read and left out; beyond that number they are skipped by probing."""

_READINGS = 3
"""How often a page is read while scheduling deletes tasks of it, before it is answered without them."""


class TaskPage(NamedTuple):
    """One page of the tasks of some apps; `total` counts the tasks of all pages."""

    tasks: Sequence[Task]
    total: int


class TaskCalls:
    """Reads and cancels the timed tasks of apps. A task belongs to every app that it sends to."""

    def __init__(self, writer: CommandWriter, peers: Peers, partitions: int) -> None:
        self._writer = writer
        self._instances = [SchedulingServiceStub(channel) for channel in peers.all("scheduling")]
        self._partitions = partitions

    async def get(self, task_key: str, appkeys: Sequence[str]) -> Task:
        """Return the task. NotFoundError: no task with that key sends to one of the apps."""
        request = GetTaskRequest(task_key=task_key, appkeys=appkeys)
        instance = self._instances[self._partition(task_key) % len(self._instances)]
        task: Task = (await instance.GetTask(request)).task
        return task

    async def cancel(self, task_key: str, appkeys: Sequence[str], origin: Origin, event_id: bytes = b"") -> None:
        """Return once the task is cancelled by this call, or by an earlier one with the same `event_id`.

        NotFoundError as for `get`; ConflictError: it was sent, or cancelled already.
        """
        task = await self.get(task_key, appkeys)
        if event_id and task.cancelled_by_event_id == event_id:
            return
        _check_unsent(task)
        command = TaskCommand(task_key=task_key, cancel=CancelTask(appkeys=appkeys))
        command.meta.event_id = event_id
        await self._writer.append_and_wait([task_command(command)], origin)
        task = await self.get(task_key, appkeys)
        if task.cancelled_by_event_id != command.meta.event_id:
            _check_unsent(task)
            raise ConflictError(Code.TASK_NOT_CANCELLED)

    async def list(self, appkeys: Sequence[str], *, descending: bool, page_num: int, page_size: int) -> TaskPage:
        """Return a page of the apps' tasks, sorted by creation time, then key. Pages count from 1.

        A page behind the last one is empty.
        """
        query = ListTasksRequest(appkeys=appkeys, descending=descending, keys_only=True)
        return await self._page(query, page_num, page_size)

    async def waiting_first(self, appkeys: Sequence[str], *, page_num: int, page_size: int) -> TaskPage:
        """Return a page of the apps' tasks: those that wait, the next one due first, then the others, the newest first.

        Pages count from 1. A page behind the last one is empty.
        """
        query = ListTasksRequest(appkeys=appkeys, waiting_first=True, keys_only=True)
        return await self._page(query, page_num, page_size)

    async def _page(self, query: ListTasksRequest, page_num: int, page_size: int) -> TaskPage:
        """Return a page; it is read again if tasks of it are deleted meanwhile, because later tasks move up."""
        skip = (page_num - 1) * page_size
        for _ in range(_READINGS):
            total = sum([answer.total for answer in await self._ask(query, [0] * len(self._instances), 1)])
            if skip >= total:
                return TaskPage((), total)
            keys = await self._keys(query, skip, page_size)
            found = await asyncio.gather(*(self._find(key, query.appkeys) for key in keys))
            tasks = [task for task in found if task]
            if len(tasks) == len(keys):
                break
        return TaskPage(tasks, total)

    async def _find(self, task_key: str, appkeys: Sequence[str]) -> Task | None:
        try:
            return await self.get(task_key, appkeys)
        except NotFoundError:
            return None

    async def _keys(self, query: ListTasksRequest, skip: int, count: int) -> Sequence[str]:
        """Return the keys of one page, merged from the lists of all scheduling instances.

        While `skip` is large, each instance is probed for its task `step` places on. The least of these tasks has fewer
        than `step` tasks of each other instance before it, so its instance skips `step` tasks unread.
        """
        offsets = [0] * len(self._instances)
        while (step := skip // len(offsets)) and skip > _READ_THROUGH:
            answers = await self._ask(query, [offset + step - 1 for offset in offsets], 1)
            probes = [(task, index) for index, answer in enumerate(answers) for task in answer.tasks]
            if not probes:
                return ()
            _, index = _first(probes, query)
            offsets[index] += step
            skip -= step
        answers = await self._ask(query, offsets, skip + count)
        tasks = sorted(
            (task for answer in answers for task in answer.tasks), key=_sort_key(query), reverse=query.descending
        )
        return [task.task_key for task in tasks[skip : skip + count]]

    async def _ask(self, query: ListTasksRequest, offsets: Sequence[int], limit: int) -> Sequence[ListTasksResponse]:
        requests = []
        for offset in offsets:
            request = ListTasksRequest(offset=offset, limit=limit)
            request.MergeFrom(query)
            requests.append(request)
        pairs = zip(self._instances, requests, strict=True)
        return await asyncio.gather(*(instance.ListTasks(request) for instance, request in pairs))

    def _partition(self, task_key: str) -> int:
        return partition_of(task_key.encode(), self._partitions)


def _check_unsent(task: Task) -> None:
    if task.cancelled_by_event_id:
        raise ConflictError(Code.TASK_CANCELLED)
    if task.status == TASK_STATUS_EXPIRED:
        raise ConflictError(Code.TASK_EXPIRED)
    if task.status == TASK_STATUS_FAILED:
        raise ConflictError(Code.TASK_FAILED)
    if task.status != TASK_STATUS_UNSENT:
        raise ConflictError(Code.TASK_SENT)


def _first(probes: Sequence[tuple[Task, int]], query: ListTasksRequest) -> tuple[Task, int]:
    choose, sort_key = max if query.descending else min, _sort_key(query)
    return choose(probes, key=lambda probe: sort_key(probe[0]))


def _sort_key(query: ListTasksRequest) -> Callable[[Task], tuple[object, ...]]:
    """Return the sort key of the tasks in the answers to the query."""
    return _waiting_first if query.waiting_first else _by_creation


def _by_creation(task: Task) -> tuple[object, ...]:
    return task.created_ms, task.task_key


def _waiting_first(task: Task) -> tuple[object, ...]:
    return not task.due_ms, task.due_ms or -task.created_ms, task.task_key


# Cancels broadcasts and multicasts for the devices that have not received them yet.


class BroadcastCancel:
    """Cancels broadcasts through the log. Delivery knows each broadcast until its time to live is over."""

    def __init__(self, writer: CommandWriter, peers: Peers) -> None:
        self._writer = writer
        self._delivery = DeliveryServiceStub(peers.all("delivery")[0])

    async def cancel(self, appkey: str, msgid: int, origin: Origin) -> None:
        """Return once the broadcast is cancelled; cancelling twice is no error. Frames already sent are not recalled.

        NotFoundError: the app has no such broadcast, or its time to live is over.
        """
        # A broadcast that was answered a moment ago may not have reached delivery yet.
        await self._writer.wait_applied(PUSH_COMMANDS, 0)
        if await self._is_cancelled(appkey, msgid):
            return
        command = PushCommand(cancel=CancelPush(msgid=msgid, appkey=appkey))
        await self._writer.append_and_wait([push_command(command)], origin)
        if not await self._is_cancelled(appkey, msgid):
            raise NotFoundError("msgid names a broadcast whose time to live is over")

    async def _is_cancelled(self, appkey: str, msgid: int) -> bool:
        try:
            found = await self._delivery.GetBroadcast(GetBroadcastRequest(msgid=msgid, appkey=appkey), timeout=5)
        except NotFoundError:
            raise NotFoundError("msgid names no broadcast of this app that can be cancelled") from None
        return bool(found.cancelled)
