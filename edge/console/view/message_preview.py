"""What a person is shown of a push before it is sent: the notification, the audience in words, and when."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from edge.console.access_control.visit import Visit
from edge.console.send.composed_pushes import ComposedPush
from edge.console.send.request_from_form import as_text
from edge.console.view.languages import Language
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID

Words = Callable[[str], str]
Fact = tuple[str, str]
"""A name and the words beside it."""

LAST_SCOPE_OF_ALL = 2
SCOPES_OF_ALIASES = (3, 4)
"""The values of userScope for the latest device of each alias, and for all of them."""

SCOPE_OF_TOKENS = 5
_DEFAULT_SOUND = "default"


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


def audience_of(composed: ComposedPush, language: Language) -> list[Fact]:
    """Return the audience in the words of the form."""
    send_to = msgspec.json.decode(composed.text)["sendTo"]
    scope = composed.order.scope
    if scope <= LAST_SCOPE_OF_ALL:
        return [(language.gettext("Audience"), language.gettext("all devices"))]
    found = {name: as_text(send_to.get(name)) for name in ("tag", "not_tag", "stag", "not_stag", "alias")}
    found |= {f"token.{name}": as_text(listed) for name, listed in (send_to.get("token") or {}).items()}
    options = (send_to.get("optfilter") or {}).get("android") or {}
    found |= {name: _option(value) for name, value in options.items()}
    facts = [(_label(name, language), words) for name, words in found.items() if words]
    if scope in SCOPES_OF_ALIASES:
        latest, all_of_them = language.gettext("the most recently active one"), language.gettext("all")
        facts.append(
            (language.gettext("Devices of an alias"), latest if scope == SCOPES_OF_ALIASES[0] else all_of_them)
        )
    return facts


def options_of(composed: ComposedPush, language: Language) -> list[Fact]:
    """Return the options that are set and that the preview does not show, in the words of the form."""
    _ = language.gettext
    option = msgspec.json.decode(composed.text).get("option") or {}
    first = composed.order.pushes[0]
    facts = [(_label("period", language), language.duration(first.period_s) if option.get("period") else "")]
    facts.append((_label("qps", language), language.number(first.qps) if first.qps else ""))
    facts.append((_label("extra", language), first.message.extra))
    for push in composed.order.pushes:
        if push.app.platform == PLATFORM_ANDROID and push.message.is_notif:
            style = push.message.android
            names = {_("Sound"): style.sound, _("Vibration"): style.vibrate, _("Can be swiped away"): style.removable}
            facts.append((_("On Android"), "\n".join(name for name, is_set in names.items() if is_set)))
        elif push.message.is_notif:
            ios = push.message.ios
            facts.append((_label("msgStyle.ios.sound", language), "" if ios.sound == _DEFAULT_SOUND else ios.sound))
            facts.append((_label("msgStyle.ios.category", language), ios.category))
            facts.append((_("Wakes the app in the background on iOS"), _("yes") if ios.content_available else ""))
    return [fact for fact in dict.fromkeys(facts) if fact[1]]


def nobody_of(composed: ComposedPush, gettext: Words) -> str:
    """Return the words for an audience that has no device now."""
    scope = composed.order.scope
    if scope <= LAST_SCOPE_OF_ALL:
        return gettext("Nobody would get this push now: the app has no devices.")
    if scope in SCOPES_OF_ALIASES:
        return gettext("Nobody would get this push now: check the spelling of the aliases.")
    if scope == SCOPE_OF_TOKENS:
        return gettext("Nobody would get this push now: check the device tokens.")
    return gettext("Nobody would get this push now: check the spelling of the tags and attributes.")


def _label(path: str, language: Language) -> str:
    field = language.form_fields.find(path, {})
    return field.label if field else path


def _option(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{name} {found if isinstance(found, int) else as_text(found)}" for name, found in value.items()
        )
    return as_text(value) if not isinstance(value, list) or (value and isinstance(value[0], str)) else str(value)


def moment_of(due_ms: int | None, visit: Visit) -> str:
    """Return the due time of a push as text in the reader's zone; "" for one that is sent at once."""
    return "" if due_ms is None else f"{visit.language.moment(due_ms, visit.zone)} ({visit.zone.key})"
