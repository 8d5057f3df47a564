"""Answers of the v2 interface."""

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from edge.core.push import Push, Receipt
from edge.core.signature import AppRef
from edge.v2.apps import NamedApps
from edge.v2.push.requests import PushOrder
from edge.v2.tags.string_tags import MAX_DEVICE_STAGS, AppTokens, Outcome, StagsByToken
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.scheduling.v1.scheduling_pb2 import (
    TASK_STATUS_CANCELLED,
    TASK_STATUS_SENT,
    TASK_STATUS_UNSENT,
    Task,
    TaskStatus,
)

Content = dict[str, Any]
_BY_ALIAS = (3, 4)
_BY_TOKEN = 5
_STATUS: Mapping["TaskStatus.ValueType", str] = MappingProxyType(
    {TASK_STATUS_UNSENT: "unsend", TASK_STATUS_SENT: "send", TASK_STATUS_CANCELLED: "cancel"}
)
_NOT_FOUND = {"result": 401, "desc": "token not found"}


def push_reply(order: PushOrder, receipts: Sequence[Receipt], task_key: str = "") -> Content:
    """One platform: its entry. Both: an entry under each name, a list where the iOS apps were given as one."""
    key = {"task_key": task_key} if task_key else {}
    pairs = list(zip(order.pushes, receipts, strict=True))
    android = [_entry(order, push, receipt) | key for push, receipt in pairs if _is_android(push)]
    ios = [_entry(order, push, receipt) | key for push, receipt in pairs if not _is_android(push)]
    if android and ios:
        return {"result": 0, "android": android[0], "ios": ios if order.ios_listed else ios[0]} | key
    if android or not order.ios_listed:
        return (android or ios)[0]
    sent = next((entry for entry in ios if entry["result"] == 0), ios[0])
    return sent | {"ios": ios}


def _is_android(push: Push) -> bool:
    return push.app.platform == PLATFORM_ANDROID


def _entry(order: PushOrder, push: Push, receipt: Receipt) -> Content:
    if not receipt.msgid:
        return dict(_NOT_FOUND)
    entry: Content = {"result": 0, "desc": "send ok", "id": receipt.msgid}
    if order.scope in _BY_ALIAS:
        entry["not_found"] = list(receipt.not_found)
    elif order.scope == _BY_TOKEN and _is_android(push):
        tokens = push.audience.tokens.tokens
        entry["details"] = [_failed(receipt.msgid, position, tokens[position]) for position in receipt.unknown]
    return entry


def _failed(msgid: int, position: int, token: str) -> Content:
    """A token that got nothing; `pos` counts from 0 in the request's list."""
    return {"msgid": msgid + position, "result": 401, "pos": position, "token": token, "desc": "token not found"}


def task_record(task: Task, appkeys: Collection[str], zone: ZoneInfo) -> Content:
    """A task as its apps see it: the content is the one that the first of these apps' devices get."""
    push = next(push for push in task.pushes if push.appkey in appkeys)
    return {
        "TaskKey": task.task_key,
        "CreateTime": time_text(task.created_ms, zone),
        "SendTime": time_text(task.due_ms, zone),
        "MsgContent": push.message.content,
        "Status": _STATUS[task.status],
    }


def time_text(moment_ms: int, zone: ZoneInfo) -> str:
    return datetime.datetime.fromtimestamp(moment_ms // 1000, zone).strftime("%Y-%m-%d %H:%M:%S")


def change_reply(
    apps: NamedApps, wanted: Sequence[tuple[AppRef, StagsByToken]], outcomes: Sequence[Sequence[Outcome]], done: str
) -> Content:
    """What became of the string tags of each device, in the order of the request."""
    details = [
        [_changed(token, outcome, done) for token, outcome in zip(by_token, of_app, strict=True)]
        for (_, by_token), of_app in zip(wanted, outcomes, strict=True)
    ]
    return device_reply(apps, details, done)


def _changed(token: str, outcome: Outcome, done: str) -> Content:
    match outcome:
        case Outcome.DONE:
            return {"token": token, "result": 0, "desc": done}
        case Outcome.UNKNOWN:
            return {"token": token, **_NOT_FOUND}
        case Outcome.FULL:
            return {
                "token": token,
                "result": 400,
                "desc": f"input error: a device has at most {MAX_DEVICE_STAGS} stags",
            }


def info_entries(asked: AppTokens, known: Mapping[str, Sequence[str]]) -> list[Content]:
    """The string tags of each device, in the order asked."""
    return [
        {"token": token, "result": 0, "desc": "ok", "infolist": list(known[token])}
        if token in known
        else {"token": token, **_NOT_FOUND, "infolist": []}
        for token in asked.tokens
    ]


def device_reply(apps: NamedApps, details: Iterable[list[Content]], desc: str) -> Content:
    """One app: `detailsinfo` at the top. A list of apps: under each appkey."""
    parts = [{"result": 0, "desc": desc, "detailsinfo": entries} for entries in details]
    if not apps.listed:
        return parts[0]
    return {"result": 0, "desc": desc} | dict(zip(apps.appkeys, parts, strict=True))
