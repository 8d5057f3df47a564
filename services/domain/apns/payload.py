"""The JSON that Apple hands to an iOS device, made of a message: sent by delivery, measured by the doors before."""

import json
from typing import Any

from protos.push.v1.push_pb2 import Message

MAX_PAYLOAD_BYTES = 4096
"""Apple refuses a larger one."""

LARGEST_BADGE = 2**31 - 1
_COUNTED = b'{"aps":{"badge":'


def payload(message: Message) -> bytes:
    """The JSON that the device is sent.

    A notification has its text, or the dictionary that the content holds, as the alert. A pass-through message is a
    background push with its content under `content`. `extra` stands beside `aps` in both. For one whose badge counts up
    it is a form that `counted` fills in.
    """
    ios = message.ios
    body: dict[str, Any]
    if message.is_notif:
        aps: dict[str, Any] = {"badge": 0} if counts_up(message) else {}
        aps["alert"] = _alert(message)
        if ios.HasField("badge") and ios.badge >= 0:
            aps["badge"] = ios.badge
        if ios.sound:
            aps["sound"] = ios.sound
        if ios.content_available:
            aps["content-available"] = 1
        if ios.category:
            aps["category"] = ios.category
        body = {"aps": aps}
    else:
        body = {"aps": {"content-available": 1}, "content": _content(message)}
    if message.HasField("extra"):
        body["extra"] = message.extra
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def counts_up(message: Message) -> bool:
    """Whether each device's badge goes up by one, which Apple cannot do: it is told the number."""
    return message.is_notif and message.ios.badge < 0


def counted(form: bytes, badge: int) -> bytes:
    """The payload of a message that counts up, for a device whose badge becomes this."""
    return _COUNTED + str(badge).encode() + form[len(_COUNTED) + 1 :]


def most_bytes(message: Message) -> int:
    """The payload's size on the device where it is largest: a badge that counts up may come to ten digits."""
    form = payload(message)
    return len(counted(form, LARGEST_BADGE) if counts_up(message) else form)


def _alert(message: Message) -> Any:
    content = _content(message)
    if isinstance(content, str) and message.ios.title:
        return {"title": message.ios.title, "body": content}
    return content


def _content(message: Message) -> str | dict[str, Any]:
    """The content's dictionary where it is one, else its text."""
    if message.ios.content_is_json:
        try:
            content = json.loads(message.content)
        except ValueError:
            return message.content
        if isinstance(content, dict):
            return content
    return message.content
