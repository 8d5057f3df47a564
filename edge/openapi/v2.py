"""The v2 interface's document."""

import functools

import msgspec

from edge.core.answers import Done, Refusal
from edge.openapi import device, v2_examples
from edge.openapi.document import Interface, Operation, openapi
from edge.openapi.schema import Component, Json
from edge.v2 import statistics as statistics_requests
from edge.v2 import tags as tag_requests
from edge.v2 import tasks as task_requests
from edge.v2.devices import InvalidTokensReply, InvalidTokensRequest
from edge.v2.push import handlers as push_replies
from edge.v2.push import requests as push_requests
from edge.v2.statistics import StatisticsReply
from edge.v2.tags import TagsChanged, TagsFound, by_app
from edge.v2.tasks import TaskDetailReply, TaskPageReply


def _signed(body: type[msgspec.Struct], signed: type[msgspec.Struct], name: str = "") -> Component:
    return Component(body, name, (signed,))


_TASK = _signed(task_requests.TaskRequest, task_requests.TasksSigned)
_TAG_CHANGE = _signed(tag_requests.TagChange, tag_requests.TagsSigned)
_CHANGED = (TagsChanged, by_app(TagsChanged), Refusal)
OPERATIONS = [
    Operation(
        "post", "/v2/push", "Send a push to one or both platforms, now or later",
        _signed(push_requests.PushRequest, push_requests.PushSigned),
        (push_replies.Sent, push_replies.SentToApps, push_replies.SentToTokens, push_replies.SentToPlatforms, Refusal),
        v2_examples.PUSHES, repeatable=True,
    ),
    Operation(
        "post", "/v2/timedtasklist", "List timed pushes, a page at a time",
        _signed(task_requests.TaskListRequest, task_requests.TasksSigned),
        (Component(TaskPageReply, "TaskPage"), Refusal), v2_examples.TASK_PAGES,
    ),
    Operation(
        "post", "/v2/timedtaskdetail", "Get one timed push", _TASK, (Component(TaskDetailReply, "TaskDetail"), Refusal),
        v2_examples.TASKS,
    ),
    Operation(
        "delete", "/v2/timed", "Cancel a timed push that was not sent yet", _TASK, (Done, Refusal), v2_examples.TASKS
    ),
    Operation("post", "/v2/device", "Give devices string tags", _TAG_CHANGE, _CHANGED, v2_examples.TAG_CHANGES),
    Operation("delete", "/v2/device", "Take string tags from devices", _TAG_CHANGE, _CHANGED, v2_examples.TAG_CHANGES),
    Operation(
        "post", "/v2/deviceinfo", "List the string tags of devices",
        _signed(tag_requests.TagQuery, tag_requests.TagsSigned), (TagsFound, by_app(TagsFound), Refusal),
        v2_examples.TAG_QUERIES,
    ),
    Operation(
        "post", "/v2/errortoken", "Invalid iOS tokens", Component(InvalidTokensRequest),
        (Component(InvalidTokensReply, "InvalidTokens"), Refusal), v2_examples.INVALID_TOKENS,
    ),
    Operation(
        "post", "/v2/statistics", "Statistics of an app",
        _signed(statistics_requests.StatisticsBody, statistics_requests.StatisticsSigned, "StatisticsRequest"),
        (Component(StatisticsReply, "Statistics"), Refusal), v2_examples.STATISTICS,
    ),
    device.OPERATION,
]  # fmt: skip


@functools.cache
def document() -> Json:
    return openapi(Interface("Carillon v2", "One interface for Android and iOS.", 8300, OPERATIONS))
