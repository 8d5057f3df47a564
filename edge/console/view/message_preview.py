"""What a person is shown of a push before it is sent: the notification, the audience in words, and when."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from edge.console.access_control.visit import Visit
from edge.console.send.composed_pushes import ComposedPush
from edge.console.send.form_body import as_text
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID

Words = Callable[[str], str]


class Preview(NamedTuple):
    """A message as a phone of one platform shows it; `effect` says what a click does."""

    is_android: bool
    is_shown: bool
    title: str
    content: str
    effect: str
    badge: str


def previews(composed: ComposedPush, gettext: Words) -> list[Preview]:
    """Return a preview for each platform that the push goes to."""
    messages = {push.app.platform: push.message for push in composed.order.pushes}
    return [_preview(platform == PLATFORM_ANDROID, message, gettext) for platform, message in messages.items()]


def _preview(is_android: bool, message: Message, gettext: Words) -> Preview:
    style = message.android if is_android else message.ios
    badge = "" if not style.HasField("badge") else "+1" if style.badge == -1 else str(style.badge)
    effect = _effect(message, gettext) if is_android and message.is_notif else ""
    return Preview(is_android, message.is_notif, style.title if is_android else "", message.content, effect, badge)


def _effect(message: Message, gettext: Words) -> str:
    param: Any = msgspec.json.decode(message.android.click_param_json or "null")
    words = {
        0: gettext("A click does nothing."),
        1: gettext("A click opens the app."),
        2: gettext("A click opens {param}"),
        3: gettext("A click starts the intent {param}"),
        4: gettext("A click opens a landing page."),
        5: gettext("A click opens a pop-up."),
        6: gettext("A click opens an information flow."),
        7: gettext("A click opens a rich-media page."),
    }
    return words[message.android.click_action].replace("{param}", param if isinstance(param, str) else "")


def audience_of(text: str, gettext: Words) -> list[tuple[str, str]]:
    """Return the audience of a v2 request as pairs of a name and its values."""
    send_to = msgspec.json.decode(text)["sendTo"]
    if int(send_to["userScope"]) <= 2:
        return [(gettext("Audience"), gettext("all devices"))]
    names = {
        "tag": gettext("Numeric tags"),
        "not_tag": gettext("Exclude these numeric tags"),
        "stag": gettext("String tags"),
        "not_stag": gettext("Exclude these string tags"),
        "alias": gettext("Alias"),
    }
    found = [(name, as_text(send_to[key])) for key, name in names.items() if send_to.get(key)]
    tokens = send_to.get("token") or {}
    found += [(gettext("Device token"), as_text(listed)) for listed in tokens.values() if listed]
    options = (send_to.get("optfilter") or {}).get("android") or {}
    return found + [(name, _option(value)) for name, value in options.items()]


def _option(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{name} {found if isinstance(found, int) else as_text(found)}" for name, found in value.items()
        )
    return as_text(value) if not isinstance(value, list) or (value and isinstance(value[0], str)) else str(value)


def moment_of(due_ms: int | None, visit: Visit) -> str:
    """Return when a push is sent, in the reader's zone; "" for at once."""
    return "" if due_ms is None else f"{visit.language.moment(due_ms, visit.zone)} ({visit.zone.key})"
