"""Requests about timed tasks. InputError names the field."""

from typing import Annotated, Literal

import msgspec

from edge.core.parsing.typed import decode

MAX_PAGE_SIZE = 50
_LAST_PAGE = 2**31 - 1


class TaskListBody(msgspec.Struct, frozen=True):
    """POST /v2/timedtasklist. `order`: by creation, 0 ascending, 1 descending."""

    page_num: Annotated[int, msgspec.Meta(ge=1, le=_LAST_PAGE)]
    page_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE_SIZE)]
    order: Literal[0, 1] | None = None


class TaskBody(msgspec.Struct, frozen=True):
    """POST /v2/timedtaskdetail, DELETE /v2/timed."""

    task_key: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


def task_list(raw: bytes) -> TaskListBody:
    body: TaskListBody = decode(TaskListBody, raw)
    return body


def task_key(raw: bytes) -> str:
    body: TaskBody = decode(TaskBody, raw)
    return body.task_key
