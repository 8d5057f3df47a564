"""Answers of the v2 interface."""

from collections.abc import Sequence
from typing import Any

from edge.core.push import Push, Receipt
from edge.v2.requests import PushOrder
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID

Content = dict[str, Any]
_BY_ALIAS = (3, 4)
_BY_TOKEN = 5


def push_reply(order: PushOrder, receipts: Sequence[Receipt], task_key: str | None = None) -> Content:
    """One platform: its entry. Both: an entry under each name, a list where the iOS apps were given as one."""
    key = {} if task_key is None else {"task_key": task_key}
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
        return {"result": 401, "desc": "token not found"}
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
