"""Answers of the legacy iOS interface."""

from typing import Any

from edge.core.push import Receipt


def push_reply(receipt: Receipt) -> dict[str, Any]:
    """The push's id, the first of them where a list was named; an error where the one token named is unknown."""
    if not receipt.msgid:
        return {"result": 401, "desc": "token not found"}
    return {"result": 0, "desc": "send ok", "msgid": receipt.msgid}
