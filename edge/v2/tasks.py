"""Timed tasks in the v2 interface: endpoints, requests, answers."""

import datetime
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

import msgspec
from falcon.asgi import Request, Response

from edge.core.admission import Admission
from edge.core.answers import Done, Reply, answer
from edge.core.parsing.fields import Count, Sign, Success, described
from edge.core.parsing.typed import decode
from edge.core.tasks import TaskCalls
from edge.v2.apps import SIGN_BY_PLATFORM, Appkeys, task_apps
from protos.scheduling.v1.scheduling_pb2 import (
    TASK_STATUS_CANCELLED,
    TASK_STATUS_EXPIRED,
    TASK_STATUS_FAILED,
    TASK_STATUS_SENT,
    TASK_STATUS_UNSENT,
    Task,
    TaskStatus,
)

# Requests about timed tasks, with their limits and descriptions. InputError names the field.

MAX_PAGE_SIZE = 50
_LAST_PAGE = 2**31 - 1


class TasksSigned(msgspec.Struct, frozen=True):
    """The fields of every request about tasks that authentication reads."""

    appkey: Annotated[Appkeys, described("The apps of the tasks; for a task to both platforms one app is enough.")]
    sign: Annotated[Sign, SIGN_BY_PLATFORM]


class TaskListRequest(msgspec.Struct, frozen=True):
    """POST /v2/timedtasklist. `order`: by creation, 0 ascending, 1 descending."""

    page_num: Annotated[int, msgspec.Meta(ge=1, le=_LAST_PAGE, description="The page, counted from 1.", examples=[1])]
    page_size: Annotated[
        int, msgspec.Meta(ge=1, le=MAX_PAGE_SIZE, description="Number of tasks on a page.", examples=[50])
    ]
    order: Annotated[
        Literal[0, 1] | None,
        msgspec.Meta(description="By creation: 0 (default) oldest first, 1 newest first.", examples=[1]),
    ] = None


class TaskRequest(msgspec.Struct, frozen=True):
    """POST /v2/timedtaskdetail, DELETE /v2/timed."""

    task_key: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=64, extra_json_schema={"format": "task-key"}),
        described("The task key from the answer that created the task."),
    ]


def task_list(raw: bytes) -> TaskListRequest:
    body: TaskListRequest = decode(TaskListRequest, raw)
    return body


def task_key(raw: bytes) -> str:
    body: TaskRequest = decode(TaskRequest, raw)
    return body.task_key


# Times in answers of the v2 interface.


def time_text(moment_ms: int, zone: ZoneInfo) -> str:
    """Format a time, given in ms since 1970, as `YYYY-MM-DD HH:MM:SS` in the service's time zone."""
    return datetime.datetime.fromtimestamp(moment_ms // 1000, zone).strftime("%Y-%m-%d %H:%M:%S")


# Answers about timed tasks.

Status = Literal["unsend", "send", "cancel"]
_STATUS: Mapping["TaskStatus.ValueType", Status] = MappingProxyType(
    {
        TASK_STATUS_UNSENT: "unsend",
        TASK_STATUS_SENT: "send",
        TASK_STATUS_CANCELLED: "cancel",
        TASK_STATUS_EXPIRED: "cancel",
        TASK_STATUS_FAILED: "cancel",
    }
)


class TaskRecord(Reply, frozen=True):
    """A timed task; times are `YYYY-MM-DD HH:MM:SS` in the service's time zone."""

    task_key: Annotated[str, described("The task's key.")] = msgspec.field(name="TaskKey")
    created: Annotated[str, described("The time of creation.")] = msgspec.field(name="CreateTime")
    send: Annotated[str, described("The time of sending.")] = msgspec.field(name="SendTime")
    content: Annotated[str, described("The content.")] = msgspec.field(name="MsgContent")
    status: Annotated[Status, described("unsend: not sent yet; send: sent; cancel: cancelled.")] = msgspec.field(
        name="Status"
    )


class TaskPageReply(Reply, frozen=True):
    result: Success
    data: Annotated[list[TaskRecord], described("The tasks of the page.")]
    pagecount: Annotated[Count, described("Number of pages.")]


class TaskDetailReply(Reply, frozen=True):
    result: Success
    data: Annotated[list[TaskRecord], msgspec.Meta(min_length=1, max_length=1), described("The task.")]


def task_record(task: Task, appkeys: Collection[str], zone: ZoneInfo) -> TaskRecord:
    """Return a task as its apps see it, with the content for the first of these apps that it sends to."""
    push = next(push for push in task.pushes if push.appkey in appkeys)
    return TaskRecord(
        task_key=task.task_key,
        created=time_text(task.created_ms, zone),
        send=time_text(task.due_ms, zone),
        content=push.message.content,
        status=_STATUS[task.status],
    )


class TaskListEndpoint:
    """POST /v2/timedtasklist"""

    def __init__(self, admission: Admission, tasks: TaskCalls, zone: ZoneInfo) -> None:
        self._admission = admission
        self._tasks = tasks
        self._zone = zone

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._admission.admit(request, task_apps)
        apps, query = signed.apps, await signed.read(task_list)
        page = await self._tasks.list(
            apps.appkeys, descending=query.order == 1, page_num=query.page_num, page_size=query.page_size
        )
        records = [task_record(task, apps.appkeys, self._zone) for task in page.tasks]
        answer(response, TaskPageReply(result=0, data=records, pagecount=-(-page.total // query.page_size)))


class TaskEndpoint:
    """POST /v2/timedtaskdetail"""

    def __init__(self, admission: Admission, tasks: TaskCalls, zone: ZoneInfo) -> None:
        self._admission = admission
        self._tasks = tasks
        self._zone = zone

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._admission.admit(request, task_apps)
        appkeys = signed.apps.appkeys
        task = await self._tasks.get(await signed.read(task_key), appkeys)
        answer(response, TaskDetailReply(result=0, data=[task_record(task, appkeys, self._zone)]))


class CancelEndpoint:
    """DELETE /v2/timed"""

    def __init__(self, admission: Admission, tasks: TaskCalls) -> None:
        self._admission = admission
        self._tasks = tasks

    async def on_delete(self, request: Request, response: Response) -> None:
        signed = await self._admission.admit(request, task_apps)
        await self._tasks.cancel(await signed.read(task_key), signed.apps.appkeys, signed.origin)
        answer(response, Done(result=0, desc="cancel succ"))
