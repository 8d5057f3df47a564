"""Requests about timed tasks, with their limits and descriptions. InputError names the field."""

from typing import Annotated, Literal

import msgspec

from edge.core.parsing.fields import Sign, described
from edge.core.parsing.typed import decode
from edge.v2.apps import SIGN_BY_PLATFORM, Appkeys

MAX_PAGE_SIZE = 50
_LAST_PAGE = 2**31 - 1


class Signed(msgspec.Struct, frozen=True):
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
