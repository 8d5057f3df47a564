"""Timed tasks, as every generation of the interface reads and cancels them."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import (
    TASK_STATUS_UNSENT,
    CancelTask,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Task,
    TaskCommand,
)
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.domain.command_writer import CommandWriter, task_command
from services.runtime.errors import ConflictError
from services.runtime.log.topics import partition_of
from services.runtime.rpc.peers import Peers

_READ_THROUGH = 500
"""So many tasks before a page are read and left out; more are jumped over."""


class TaskPage(NamedTuple):
    """One page of an app's tasks, and how many tasks there are in all."""

    tasks: Sequence[Task]
    total: int


class Tasks:
    """Tasks are named by their key and reached through each app they send to."""

    def __init__(self, writer: CommandWriter, peers: Peers, partitions: int) -> None:
        self._writer = writer
        self._instances = [SchedulingServiceStub(channel) for channel in peers.all("scheduling")]
        self._partitions = partitions

    async def get(self, task_key: str, appkeys: Sequence[str]) -> Task:
        """NotFoundError: no task with that key sends to one of the apps."""
        request = GetTaskRequest(task_key=task_key, appkeys=appkeys)
        instance = self._instances[self._partition(task_key) % len(self._instances)]
        task: Task = (await instance.GetTask(request)).task
        return task

    async def cancel(self, task_key: str, appkeys: Sequence[str], origin: Origin) -> None:
        """Return once the task is cancelled by this call.

        NotFoundError as for `get`; ConflictError: it was sent, or cancelled already.
        """
        _check_unsent(await self.get(task_key, appkeys))
        command = TaskCommand(task_key=task_key, cancel=CancelTask(appkeys=appkeys))
        await self._writer.append_and_wait([task_command(command)], origin)
        task = await self.get(task_key, appkeys)
        if task.cancelled_by_event_id != command.meta.event_id:
            _check_unsent(task)
            raise ConflictError("task_key: the task could not be cancelled")

    async def list(self, appkeys: Sequence[str], *, descending: bool, page_num: int, page_size: int) -> TaskPage:
        """The apps' tasks by creation time, then key; pages count from 1, one behind the last is empty."""
        skip = (page_num - 1) * page_size
        query = ListTasksRequest(appkeys=appkeys, descending=descending, keys_only=True)
        total = sum([answer.total for answer in await self._ask(query, [0] * len(self._instances), 1)])
        if skip >= total:
            return TaskPage((), total)
        keys = await self._keys(query, skip, page_size)
        return TaskPage(await asyncio.gather(*(self.get(key, appkeys) for key in keys)), total)

    async def _keys(self, query: ListTasksRequest, skip: int, count: int) -> Sequence[str]:
        """The keys of one page, merged from the pages of all instances.

        While many tasks come before it, each instance is asked for its task `step` places on. Before the first of
        these stand fewer than `step` tasks of each other instance, so its own `step` tasks can be skipped unseen.
        """
        offsets = [0] * len(self._instances)
        while (step := skip // len(offsets)) and skip > _READ_THROUGH:
            answers = await self._ask(query, [offset + step - 1 for offset in offsets], 1)
            probes = [(task, index) for index, answer in enumerate(answers) for task in answer.tasks]
            if not probes:
                return ()
            _, index = _first(probes, descending=query.descending)
            offsets[index] += step
            skip -= step
        answers = await self._ask(query, offsets, skip + count)
        tasks = sorted((task for answer in answers for task in answer.tasks), key=_place, reverse=query.descending)
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
        raise ConflictError("task_key: the task was cancelled already")
    if task.status != TASK_STATUS_UNSENT:
        raise ConflictError("task_key: the task was sent already")


def _first(probes: Sequence[tuple[Task, int]], *, descending: bool) -> tuple[Task, int]:
    choose = max if descending else min
    return choose(probes, key=lambda probe: _place(probe[0]))


def _place(task: Task) -> tuple[int, str]:
    return task.created_ms, task.task_key
