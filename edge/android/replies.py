"""Answers of the legacy Android interface."""

from collections.abc import Sequence
from typing import Any

from edge.android.requests import PushOrder
from edge.core.push import Push, Receipt
from protos.push.v1.push_pb2 import KIND_UNICAST

Content = dict[str, Any]


def push_reply(order: PushOrder, receipts: Sequence[Receipt]) -> Content:
    """A broadcast's or multicast's id; of a unicast an entry for each token, then one for each alias.

    `msgid` stands at the top also where the entries do not say it, for aliases, and for a token that was no list.
    """
    reply: Content = {"result": 0, "desc": "send ok"}
    details: list[Content] = []
    for push, receipt in zip(order.pushes, receipts, strict=True):
        by_token = push.audience.HasField("tokens")
        if push.kind == KIND_UNICAST:
            details += _by_token(push, receipt) if by_token else _by_alias(push, receipt)
        if not by_token or (order.lone and not receipt.unknown):
            reply["msgid"] = receipt.msgid
    return reply | {"details": details} if details else reply


def _by_token(push: Push, receipt: Receipt) -> list[Content]:
    """`pos` counts from 0; a token given again has its own id each time."""
    unknown = set(receipt.unknown)
    return [
        {"msgid": receipt.msgid + pos, "pos": pos, "token": token}
        | ({"result": 401, "desc": "token not found"} if pos in unknown else {"result": 0, "desc": "send ok"})
        for pos, token in enumerate(push.audience.tokens.tokens)
    ]


def _by_alias(push: Push, receipt: Receipt) -> list[Content]:
    """How many devices of each alias it goes to. An alias without a device counts as one that failed."""
    return [
        {"alias": alias, "succ_num": count, "fail_num": 0 if count else 1}
        for alias, count in zip(push.audience.aliases.aliases, receipt.reached, strict=True)
    ]
