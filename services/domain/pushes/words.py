"""The title and the beginning of the text of a push, which lists of pushes and drafts show."""

from typing import Any

import msgspec

from protos.push.v1.push_pb2 import Message

MAX_TEXT = 200
"""Characters of a text that are stored."""


def push_title(message: Message) -> str:
    """Return the title; "" if the push has none."""
    match message.WhichOneof("style"):
        case "android":
            return message.android.title
        case "ios":
            return message.ios.title or _word(_alert(message), "title")
        case _:
            return ""


def push_text(message: Message) -> str:
    """Return the beginning of the text; for a legacy iOS alert that is a dictionary, the beginning of its body."""
    text = message.content
    if message.ios.content_is_json:
        alert = _alert(message)
        text = (alert if isinstance(alert, str) else _word(alert, "body")) or text
    return text[:MAX_TEXT]


def _alert(message: Message) -> object:
    """Return the alert of a content that is JSON: it, or the alert in its `aps`."""
    try:
        content: Any = msgspec.json.decode(message.content) if message.ios.content_is_json else None
    except msgspec.DecodeError:
        return None
    aps = content.get("aps") if isinstance(content, dict) else None
    return aps.get("alert") if isinstance(aps, dict) else content


def _word(alert: object, name: str) -> str:
    word: Any = alert.get(name) if isinstance(alert, dict) else None
    return word if isinstance(word, str) else ""
