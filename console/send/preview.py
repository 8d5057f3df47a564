"""The preview of a push before it is sent or approved: message, audience, time, every field, reason for approval."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from console.send.composed_pushes import STARTS_INTENT, ComposedPush, Link, Param, link_of, looks_like_link, params_of
from console.send.forms import as_text
from console.shell.languages import Language
from console.shell.visit import Visit
from protos.accounts.v1.drafts_pb2 import ApprovalNeed
from protos.push.v1.push_pb2 import Audience, IosStyle, Message, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App

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


def previews_of_form(form: Mapping[str, str], *, is_android: bool) -> list[Preview]:
    """Return what a form has so far, whether or not it can be sent: a preview for its platform, then the other's."""
    is_shown, content, both = form.get("is_notif") != "0", form.get("content", ""), bool(form.get("other"))
    shown = []
    if is_android or both:
        badge = _badge_words(form.get("badge", ""))
        shown.append(Preview(True, is_shown, form.get("title", "") if is_shown else "", content, "", badge))
    if not is_android or both:
        text = (form.get("content_ios", "") if both else "") or content
        shown.append(Preview(False, is_shown, "", text, "", _badge_words(form.get("ios_badge", ""))))
    return shown if is_android else shown[::-1]


def _badge_words(badge: str) -> str:
    return "+1" if badge == "-1" else badge


def _preview(is_android: bool, message: Message, gettext: Words) -> Preview:
    style = message.android if is_android else message.ios
    badge = _badge_words(str(style.badge)) if style.HasField("badge") else ""
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


# The complete contents of a push, for the person who decides about it: fields, parameters, and hosts of links.
#
# It is made of the messages that are sent, not of the request that they were made from, so nothing can differ.

CHOICES = frozenset({"jump-button", "download-condition"})
"""Parameters that are 1 or 0, for yes or no."""


class ShownField(NamedTuple):
    """A field with its value. `link`: its target, for a link. `is_unsafe`: it should be or looks like a link, but is no
    HTTP or HTTPS link."""

    name: str
    value: str
    link: Link | None = None
    is_unsafe: bool = False


class PushContents(NamedTuple):
    """The push to one app, by its appkey, with all that it has."""

    appkey: str
    shown: list[ShownField]


def contents_of_composed(composed: ComposedPush, language: Language) -> list[PushContents]:
    """Return the contents of a push that is not in the log yet."""
    return [
        _contents(push.app.appkey, push.message, push.audience, push.period_s, push.qps, language)
        for push in composed.order.pushes
    ]


def contents_of_sends(pushes: Sequence[SendPush], language: Language) -> list[PushContents]:
    """Return the contents of the pushes of a draft's task."""
    return [_contents(push.appkey, push.message, push.audience, push.period_s, push.qps, language) for push in pushes]


def _contents(
    appkey: str, message: Message, audience: Audience, period_s: int, qps: int, language: Language
) -> PushContents:
    _ = language.gettext
    shown = [
        ShownField(
            _("Kind"), _("a notification that people see") if message.is_notif else _("a silent message (data only)")
        ),
        *(_of_android(message, language) if message.HasField("android") else ()),
        *(_of_ios(message.ios, language) if message.HasField("ios") else ()),
        ShownField(_("Text"), message.content),
        ShownField(_("Extra text for the app"), message.extra if message.HasField("extra") else ""),
        ShownField(_("Audience"), language.audience.of_push(audience)),
        ShownField(_("Keep for offline devices"), language.duration(period_s) if period_s else ""),
        ShownField(_("Messages a second"), language.number(qps) if qps else ""),
    ]
    return PushContents(appkey, [each for each in shown if each.value])


def _of_android(message: Message, language: Language) -> Iterator[ShownField]:
    _, style = language.gettext, message.android
    yes, no = _("yes"), _("no")
    if style.HasField("title"):
        yield ShownField(_("Title"), style.title)
    if message.is_notif:
        yield ShownField(_("Sound"), yes if style.sound else no)
        yield ShownField(_("Vibration"), yes if style.vibrate else no)
        yield ShownField(_("Can be swiped away"), yes if style.removable else no)
    if style.HasField("badge"):
        yield ShownField(_("Badge number on Android"), str(style.badge))
    if message.is_notif or style.click_action:
        actions = _click_actions(language)
        yield ShownField(
            _("When tapped"), actions[style.click_action] if style.click_action < len(actions) else str(style)
        )
    for param in params_of(message):
        yield _of_param(style.click_action, param, language)


def _of_param(action: int, param: Param, language: Language) -> ShownField:
    _ = language.gettext
    path = f"click_param.{param.path}" if param.path else "click_param"
    field = language.form_fields.find(path, {"click_action": str(action)})
    name = field.label if field else param.path or _("Intent")
    value = param.value
    if param.path.rpartition(".")[2] in CHOICES:
        value = {"0": _("no"), "1": _("yes")}.get(value, value)
    link = link_of(value)
    is_intent = action == STARTS_INTENT and not param.path
    return ShownField(name, value, link, (param.is_link or looks_like_link(value)) and link is None and not is_intent)


def _of_ios(style: IosStyle, language: Language) -> Iterator[ShownField]:
    _ = language.gettext
    if style.HasField("title"):
        yield ShownField(_("Title"), style.title)
    if style.HasField("badge"):
        yield ShownField(_("Badge number on iOS"), str(style.badge))
    if style.HasField("sound"):
        yield ShownField(_("Sound file on iOS"), style.sound)
    if style.HasField("category"):
        yield ShownField(_("Category on iOS"), style.category)
    if style.HasField("content_available"):
        words = _("yes") if style.content_available else _("no")
        yield ShownField(_("Wakes the app in the background on iOS"), words)


def _click_actions(language: Language) -> list[str]:
    _ = language.gettext
    return [
        *(_("does nothing"), _("opens the app"), _("opens a URL"), _("starts an intent"), _("opens a landing page")),
        *(_("opens a pop-up"), _("opens an information flow"), _("opens a rich-media page")),
    ]


# Why a push needs the approval of a second person, in the reader's language.


def need_words(need: ApprovalNeed | None, language: Language, app_of: Callable[[str], App]) -> str:
    """Return why a push needs an approval, with the numbers that decided it; "" if it needs none or that is unknown."""
    if need is None:
        return ""
    _, number = language.gettext, language.number
    match need.rule:
        case ApprovalNeed.RULE_BROADCASTS:
            text = _(
                "It reaches %(devices)s of %(all)s devices of %(app)s, and a push to %(share)s %% of them or more needs"
                " an approval."
            )
            words = text % {
                "devices": number(need.devices),
                "all": number(need.app_devices),
                "app": app_of(need.appkey).name,
                "share": number(need.share_percent),
            }
        case ApprovalNeed.RULE_ABOVE_DEVICES:
            text = _("It reaches %(devices)s devices, and a push to more than %(bound)s devices needs an approval.")
            words = text % {"devices": number(need.devices), "bound": number(need.above_devices)}
        case _:
            return ""
    if need.earlier_devices:
        more = _("The sender's pushes of the last hour, to %(earlier)s devices, count too.")
        words += " " + more % {"earlier": number(need.earlier_devices)}
    return words
