"""Answers about timed tasks."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

import msgspec

from edge.core.answers import Reply
from edge.core.parsing.fields import Count, Success, described
from edge.v2.times import time_text
from protos.scheduling.v1.scheduling_pb2 import (
    TASK_STATUS_CANCELLED,
    TASK_STATUS_EXPIRED,
    TASK_STATUS_FAILED,
    TASK_STATUS_SENT,
    TASK_STATUS_UNSENT,
    Task,
    TaskStatus,
)

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
