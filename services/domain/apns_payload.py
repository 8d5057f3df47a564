"""APNs payload of a message: built by delivery, measured by the HTTP interfaces before they accept a push."""

import json
from typing import Any

from protos.push.v1.push_pb2 import Message

MAX_PAYLOAD_BYTES = 4096
"""Apple's limit for alert and background pushes."""

MAX_BADGE = 2**31 - 1
_BADGE_PREFIX = b'{"aps":{"badge":'
_CARILLON = "carillon"
"""The name beside `aps` under which the service's own values stand."""

_MAX_MSGID = 2**53 - 1
_MSGID_END = b"}}"


def possession_payload(code: str) -> bytes:
    """Build the JSON of the silent push that brings a possession code."""
    return json.dumps({"aps": {"content-available": 1}, _CARILLON: {"code": code}}, separators=(",", ":")).encode()


def payload(message: Message) -> bytes:
    """Build the JSON sent to the device.

    A notification's alert is its text, or the dictionary in its content; without a content it changes the badge alone.
    A pass-through message is a background push with its content under `content`. `extra` stands beside `aps` in both.
    Content that is JSON with a dictionary `aps` is Apple's payload itself, in which badge, category and extra of the
    message take the place of its own.

    If the message increments badges, the result is a template with badge 0 for `with_badge`; if it carries its id, one
    with id 0 for `with_msgid`. An alert with its id is mutable: the app's notification service extension gets it first.
    """
    ios = message.ios
    given = apple_payload(message)
    body: dict[str, Any]
    if message.is_notif:
        aps: dict[str, Any] = {"badge": 0} if increments_badge(message) else {}
        if given:
            aps |= {name: value for name, value in given["aps"].items() if name not in aps}
        elif message.content:
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
    elif given:
        body = {"aps": {**given["aps"], "content-available": 1}}
    else:
        body = {"aps": {"content-available": 1}, "content": _content(message)}
    body |= {name: value for name, value in given.items() if name != "aps"}
    if message.HasField("extra"):
        body["extra"] = message.extra
    if ios.carries_msgid:
        if "alert" in body["aps"]:
            body["aps"]["mutable-content"] = 1
        body.pop(_CARILLON, None)
        body[_CARILLON] = {"msgid": 0}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def apple_payload(message: Message) -> dict[str, Any]:
    """Return the content if it is a payload in Apple's form, with a dictionary `aps`; else an empty dictionary."""
    content = _content(message) if message.ios.content_is_json else None
    return content if isinstance(content, dict) and isinstance(content.get("aps"), dict) else {}


def increments_badge(message: Message) -> bool:
    """Whether each device's badge goes up by one. Apple only sets absolute badges, so each device's payload differs."""
    return message.is_notif and message.ios.badge < 0


def with_badge(template: bytes, badge: int) -> bytes:
    """Fill a device's badge into the template of a message that increments badges."""
    return _BADGE_PREFIX + str(badge).encode() + template[len(_BADGE_PREFIX) + 1 :]


def with_msgid(template: bytes, msgid: int) -> bytes:
    """Fill the message id into the template of a message that carries it."""
    return template[: -len(_MSGID_END) - 1] + str(msgid).encode() + _MSGID_END


def max_size_bytes(message: Message) -> int:
    """Size of the largest payload any device may get; an incremented badge may have ten digits."""
    largest = payload(message)
    if message.ios.carries_msgid:
        largest = with_msgid(largest, _MAX_MSGID)
    return len(with_badge(largest, MAX_BADGE) if increments_badge(message) else largest)


def carrying_msgid(message: Message) -> Message:
    """Return the message with its id in the payload; the message itself if Apple would refuse that as too large."""
    changed = Message()
    changed.CopyFrom(message)
    changed.ios.carries_msgid = True
    return changed if max_size_bytes(changed) <= MAX_PAYLOAD_BYTES else message


def _alert(message: Message) -> Any:
    content = _content(message)
    if isinstance(content, str) and message.ios.title:
        return {"title": message.ios.title, "body": content}
    return content


def _content(message: Message) -> str | dict[str, Any]:
    """The content as a dictionary if it is declared as JSON and is an object, else as text."""
    if message.ios.content_is_json:
        try:
            content = json.loads(message.content)
        except ValueError:
            return message.content
        if isinstance(content, dict):
            return content
    return message.content
