"""The summary of a push for lists: its title, the beginning of its text, and what its audience is made of."""

from typing import Any, assert_never

import msgspec

from protos.analytics.v1.details_pb2 import AudienceSummary, ListedAliases
from protos.push.v1.push_pb2 import Audience, Message

MAX_TEXT = 200
"""Upper bound of the characters of a push's text that are stored."""


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
    """Return the alert of a content that is JSON: that in its `aps`, or without `aps` the content itself."""
    try:
        content: Any = msgspec.json.decode(message.content) if message.ios.content_is_json else None
    except msgspec.DecodeError:
        return None
    aps = content.get("aps") if isinstance(content, dict) else None
    return aps.get("alert") if isinstance(aps, dict) else content


def _word(alert: object, name: str) -> str:
    word: Any = alert.get(name) if isinstance(alert, dict) else None
    return word if isinstance(word, str) else ""


# What the audience of a push is made of, without the entries of its list.

_NUMBER_BYTES = 4


def audience_summary(audience: Audience) -> AudienceSummary:
    """Return what the audience is made of: its filter, or the number of entries in its list."""
    match audience.WhichOneof("audience"):
        case "everyone":
            return AudienceSummary(everyone=audience.everyone)
        case "filter":
            return AudienceSummary(filter=audience.filter)
        case "devices":
            return AudienceSummary(devices=len(audience.devices.numbers) // _NUMBER_BYTES)
        case "tokens":
            return AudienceSummary(tokens=len(audience.tokens.tokens))
        case "aliases":
            listed = audience.aliases
            return AudienceSummary(aliases=ListedAliases(count=len(listed.aliases), all_devices=listed.all_devices))
        case None:
            return AudienceSummary()
        case never:
            assert_never(never)
