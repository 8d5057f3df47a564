"""What a vendor's own notification shows and opens: texts of a bounded length, and what a tap does."""

import unicodedata
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from services.domain.device_protocol.pushes import PushFields

NO_TEXT = "\N{HORIZONTAL ELLIPSIS}"
"""Shown in the place of an empty title or content, which vendors refuse."""

NOTIFY_IDS = 2**31 - 1
"""How many ids a phone's notifications may have. One with the same id replaces the shown one."""

_URL, _INTENT = 2, 3


class Opens(Enum):
    """What a tap opens."""

    APP = auto()
    URL = auto()
    INTENT = auto()


class Tap(NamedTuple):
    """What a tap does. `param`: the URL, or Android's text of an intent."""

    opens: Opens
    param: str = ""


def tap_of(fields: PushFields, *, schemes: tuple[str, ...] = ("https://",), most: int = 2**31) -> Tap:
    """Return what a tap does: what only the app can show begins with opening the app.

    `schemes`: those of URLs that the vendor opens. `most`: characters of a URL or intent.
    """
    click = fields.click
    if click is UNSET or click.param is UNSET or click.action not in (_URL, _INTENT):
        return Tap(Opens.APP)
    param = msgspec.json.decode(click.param)
    if not isinstance(param, str) or not 0 < len(param) <= most:
        return Tap(Opens.APP)
    if click.action == _INTENT:
        return Tap(Opens.INTENT, param)
    return Tap(Opens.URL, param) if param.startswith(schemes) else Tap(Opens.APP)


def notify_id(msgid: int) -> int:
    """Return the id of a message's notification, from 1."""
    return 1 + msgid % NOTIFY_IDS


def wide(text: str) -> int:
    """Return the length of a text in which wide characters, such as Chinese ones, count as two."""
    return len(text) + sum(unicodedata.east_asian_width(each) in "WF" for each in text)


def cut(text: str, most: int, length: Callable[[str], int] = len) -> str:
    """Return the text if it has at most `most`; else its beginning with an ellipsis. An empty one is NO_TEXT."""
    if not text.strip():
        return NO_TEXT
    if length(text) <= most:
        return text
    kept = text[: most - 1]
    while length(kept) > most - 1:
        kept = kept[:-1]
    return kept + NO_TEXT
