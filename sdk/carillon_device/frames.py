"""The frames of the device protocol as Python types, pure; docs/devices.md explains their fields."""

import json
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

SUBPROTOCOL = "carillon.device.v1"
MAX_ACKNOWLEDGED = 400
"""Message ids in one ack: a frame has 8 KiB at most."""

Frame = dict[str, Any]
ReportEvent = Literal["shown", "clicked", "dismissed"]
ActivityEvent = Literal["open", "login", "logout"]


class Click(TypedDict):
    action: int
    param: NotRequired[Any]


class Push(TypedDict):
    """A push; `expires_at` is in milliseconds since 1970 UTC."""

    type: Literal["push"]
    msgid: int
    is_notif: Literal[0, 1]
    content: str
    expires_at: int
    title: NotRequired[str]
    sound: NotRequired[bool]
    vibrate: NotRequired[bool]
    removable: NotRequired[bool]
    click: NotRequired[Click]
    badge: NotRequired[int]
    extra: NotRequired[str]


class Known(TypedDict):
    """The service's record of a device; `device` holds the attributes that the device reported.

    `channels`: those on which it has an address; absent if on none.
    """

    alias: str | None
    tags: list[int]
    stags: list[str]
    device: dict[str, str]
    channels: NotRequired[list[str]]


def encode(frame: Mapping[str, Any]) -> bytes:
    return json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()


def decode(text: str) -> Frame | None:
    """Return a frame that has the fields its type needs; None for anything else, which a device ignores."""
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(frame, dict):
        return None
    match frame:
        case {"type": "welcome", "token": str(), "key": str(), "heartbeat": int() as heartbeat_s} if heartbeat_s > 0:
            return frame
        case {"type": "push", "msgid": int()} | {"type": "goodbye", "reason": str()}:
            return frame
        case {"type": "ok" | "error"} if isinstance(frame.get("id", 0), int):
            return frame
    return None
