"""The JSON that Apple hands to an iOS device, made of a message: sent by delivery, measured by the doors before."""

import json
from typing import Any

from protos.push.v1.push_pb2 import Message

MAX_PAYLOAD_BYTES = 4096
"""Apple refuses a larger one."""

_LARGEST_BADGE = 2**31 - 1


def payload(message: Message) -> bytes:
    """The JSON that the device is sent.

    A notification has its text, or the dictionary that the content holds, as the alert. A pass-through message is a
    background push with its content under `content`. `extra` stands beside `aps` in both. A badge below 0 asks to count
    up, which Apple cannot: the key is left out and the badge stays as it is.
    """
    ios = message.ios
    body: dict[str, Any]
    if message.is_notif:
        aps: dict[str, Any] = {"alert": _alert(message)}
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


def most_bytes(message: Message) -> int:
    """The payload's size on the device where it is largest: a badge that counts up may come to ten digits."""
    if message.ios.badge >= 0:
        return len(payload(message))
    counted = Message()
    counted.CopyFrom(message)
    counted.ios.badge = _LARGEST_BADGE
    return len(payload(counted))


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
