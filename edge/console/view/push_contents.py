"""Everything that a push has, for whoever decides whether it is sent: each field, each parameter, each link's host.

It is made of the messages that are sent, not of the request that they were made from, so nothing can differ.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from edge.console.send.composed_pushes import ComposedPush
from edge.console.send.links import STARTS_INTENT, Link, Param, link_of, looks_like_link, params_of
from edge.console.view.languages import Language
from protos.push.v1.push_pb2 import Audience, IosStyle, Message, SendPush

CHOICES = frozenset({"jump-button", "download-condition"})
"""Parameters that are 1 or 0, for yes or no."""


class Shown(NamedTuple):
    """A field with its value. `link`: where it leads, for a link. `is_unsafe`: it looks like a link, and is none that
    browsers open."""

    name: str
    value: str
    link: Link | None = None
    is_unsafe: bool = False


class PushContents(NamedTuple):
    """The push to one app, by its appkey, with all that it has."""

    appkey: str
    shown: list[Shown]


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
        Shown(_("Kind"), _("a notification that people see") if message.is_notif else _("a message for the app alone")),
        *(_of_android(message, language) if message.HasField("android") else ()),
        *(_of_ios(message.ios, language) if message.HasField("ios") else ()),
        Shown(_("Text"), message.content),
        Shown(_("Extra text for the app"), message.extra if message.HasField("extra") else ""),
        Shown(_("Audience"), language.audience.of_push(audience)),
        Shown(_("Devices that are offline get it within"), language.duration(period_s) if period_s else ""),
        Shown(_("Messages a second"), language.number(qps) if qps else ""),
    ]
    return PushContents(appkey, [each for each in shown if each.value])


def _of_android(message: Message, language: Language) -> Iterator[Shown]:
    _, style = language.gettext, message.android
    yes, no = _("yes"), _("no")
    if style.HasField("title"):
        yield Shown(_("Title"), style.title)
    if message.is_notif:
        yield Shown(_("Sound"), yes if style.sound else no)
        yield Shown(_("Vibration"), yes if style.vibrate else no)
        yield Shown(_("Can be swiped away"), yes if style.removable else no)
    if style.HasField("badge"):
        yield Shown(_("Badge number on Android"), str(style.badge))
    if message.is_notif or style.click_action:
        actions = _click_actions(language)
        yield Shown(_("A click"), actions[style.click_action] if style.click_action < len(actions) else str(style))
    for param in params_of(message):
        yield _of_param(style.click_action, param, language)


def _of_param(action: int, param: Param, language: Language) -> Shown:
    _ = language.gettext
    path = f"click_param.{param.path}" if param.path else "click_param"
    field = language.form_fields.find(path, {"click_action": str(action)})
    name = field.label if field else param.path or _("Intent")
    value = param.value
    if param.path.rpartition(".")[2] in CHOICES:
        value = {"0": _("no"), "1": _("yes")}.get(value, value)
    link = link_of(value)
    is_intent = action == STARTS_INTENT and not param.path
    return Shown(name, value, link, (param.is_link or looks_like_link(value)) and link is None and not is_intent)


def _of_ios(style: IosStyle, language: Language) -> Iterator[Shown]:
    _ = language.gettext
    if style.HasField("title"):
        yield Shown(_("Title"), style.title)
    if style.HasField("badge"):
        yield Shown(_("Badge number on iOS"), str(style.badge))
    if style.HasField("sound"):
        yield Shown(_("Sound file on iOS"), style.sound)
    if style.HasField("category"):
        yield Shown(_("Category on iOS"), style.category)
    if style.HasField("content_available"):
        words = _("yes") if style.content_available else _("no")
        yield Shown(_("Wakes the app in the background on iOS"), words)


def _click_actions(language: Language) -> list[str]:
    _ = language.gettext
    return [
        *(_("does nothing"), _("opens the app"), _("opens a URL"), _("starts an intent"), _("opens a landing page")),
        *(_("opens a pop-up"), _("opens an information flow"), _("opens a rich-media page")),
    ]
