"""Links in pushes: which fields have them, which are refused, and the host that a phone goes to."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from edge.v2.push.requests import PushOrder
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from services.runtime.errors import InputError

LINK_FIELDS = frozenset({"picture-addr", "picture-hyperlink", "tip-url", "url"})
"""The keys of click_param whose values are links."""

OPENS_URL, STARTS_INTENT = 2, 3
"""The values of click_action whose click_param is the link itself, or an intent."""

_AT = "msgStyle.android.click_param"
_HTTP = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\]")
_PORT = re.compile(r"(.*?)(:[0-9]{0,5})?", re.DOTALL)
_DOTS = str.maketrans(dict.fromkeys("。．｡", "."))
_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}


class Param(NamedTuple):
    """A value of click_param with its path in it, such as `information[0].title`; "" for one that is a text alone."""

    path: str
    value: str
    is_link: bool


class Link(NamedTuple):
    """Where a link leads. `host`: as the phone resolves it, with the port, international names in ASCII (`xn--`).

    `written`: the host as the link writes it, "" where that is the same. `user`: what stands before the host and looks
    like one, as in `https://bank.example@evil.example`.
    """

    host: str
    written: str
    user: str


def link_of(text: str) -> Link | None:
    """Return where a link leads as browsers read it; None for a text that is no HTTP or HTTPS link.

    A link with spaces, backslashes or invisible characters is none: browsers read it in different ways than people do.
    """
    found = _HTTP.match(text)
    if found is None or "\\" in text or any(unicodedata.category(char) in _INVISIBLE for char in text):
        return None
    user, _, written = found[1].rpartition("@")
    place = _PORT.fullmatch(written)
    assert place is not None
    host = ".".join(map(_ascii_label, unicodedata.normalize("NFKC", place[1]).lower().translate(_DOTS).split(".")))
    if not _HOST.fullmatch(host):
        return None
    port = place[2] or ""
    return Link(host + port, written if written != host + port else "", user)


def params_of(message: Message) -> Iterator[Param]:
    """Yield every value of the message's click_param, unknown ones too; links are those of link fields."""
    action = message.android.click_action
    param: Any = msgspec.json.decode(message.android.click_param_json or "null")
    yield from _values("", param, is_link=action == OPENS_URL)


def check_links(order: PushOrder) -> None:
    """Check that each link of a push is an HTTP or HTTPS link. InputError: one is not; names the field."""
    for push in order.pushes:
        if push.app.platform != PLATFORM_ANDROID:
            continue
        for param in params_of(push.message):
            if param.is_link and param.value and link_of(param.value) is None:
                at = f"{_AT}.{param.path}" if param.path else _AT
                raise InputError(f"{at} must be a link that begins with http:// or https://, without spaces")


def looks_like_link(text: str) -> bool:
    """Return whether a text that is in no link field begins as a link does, with a scheme."""
    return _SCHEME.match(text) is not None


def _values(path: str, value: Any, *, is_link: bool) -> Iterator[Param]:
    match value:
        case None:
            return
        case dict():
            for key, inner in value.items():
                inner_path = f"{path}.{key}" if path else str(key)
                yield from _values(inner_path, inner, is_link=str(key).replace("_", "-") in LINK_FIELDS)
        case list():
            for index, inner in enumerate(value):
                yield from _values(f"{path}[{index}]", inner, is_link=is_link)
        case str():
            yield Param(path, value, is_link)
        case _:
            yield Param(path, msgspec.json.encode(value).decode(), is_link)


def _ascii_label(label: str) -> str:
    return label if label.isascii() else f"xn--{label.encode('punycode').decode()}"
