"""The v2 request that a composed form stands for. The request is checked as those of app servers are, not here."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from edge.console.numbers import whole_number
from edge.console.send.text_lists import comparisons, models, numbers, text_of, values
from edge.console.send.text_lists import lines_of_values as groups
from services.runtime.errors import InputError

Form = Mapping[str, str]
Body = dict[str, Any]

LISTS = ("locate", "osversion", "appversion", "channel", "phone", "operator")
"""Options of the device filter that are lists of values; each has a form `_not` too."""

DAYS = (1, 7, 30, 90)
PARAMS: Mapping[int, tuple[str, ...]] = {
    4: (
        "picture-addr",
        "picture-hyperlink",
        "jump-button",
        "jump-seconds",
        "tip-content",
        "tip-url",
        "download-condition",
    ),
    5: ("popup-mode", "title", "picture-addr", "picture-hyperlink", "tip-content", "tip-url", "download-condition"),
    6: ("flow-mode", "top-title", "download-condition"),
    7: ("url",),
}
"""The keys of click_param by click_action; the field of one is `click4.picture-addr`."""

ARTICLE = ("title", "picture-addr", "text-abstract", "text-detail")
ARTICLES = 7
UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_MAX_NUMBER = 2**62
_NUMBERS = {"jump-button", "jump-seconds", "download-condition", "popup-mode", "flow-mode"}


class ChosenApps(NamedTuple):
    """The apps that a push goes to, by appkey; one of both may be missing."""

    android: str = ""
    ios: str = ""

    @property
    def appkeys(self) -> list[str]:
        return [appkey for appkey in self if appkey]


class Zones(NamedTuple):
    """The time zone of the person who composes, and that of the interface."""

    person: ZoneInfo
    interface: ZoneInfo


def body_of(form: Form, apps: ChosenApps, zones: Zones) -> Body:
    """Return the request, without what is left empty. InputError: a field cannot be read as what it should be."""
    form = {name: value.replace("\r\n", "\n") for name, value in form.items()}
    style: Body = {"basic": _basic(form, apps)}
    if form.get("is_notif", "1") == "1":
        style |= {"android": _android(form)} if apps.android else {}
        style |= {"ios": ios} if apps.ios and (ios := _ios(form)) else {}
    body: Body = {"sendTo": _send_to(form, apps), "msgStyle": style}
    if option := _option(form, zones):
        body["option"] = option
    if extra := form.get("extra", ""):
        body["extra"] = extra
    return body


def _basic(form: Form, apps: ChosenApps) -> Body:
    content: Any = form.get("content", "")
    if apps.android and apps.ios and (other := form.get("content_ios", "")):
        content = {"android": content, "ios": other}
    return {"content": content, "is_notif": 1 if form.get("is_notif", "1") == "1" else 0}


def _android(form: Form) -> Body:
    action = _integer(form, "click_action") or 0
    style: Body = {
        "title": form.get("title", "").strip(),
        "sound": bool(form.get("sound")),
        "vibrate": bool(form.get("vibrate")),
        "unremovable": bool(form.get("removable")),
        "badge": _integer(form, "badge"),
        "click_action": action,
    }
    if action in (2, 3):
        style["click_param"] = form.get("url" if action == 2 else "intent", "").strip()
    elif action in PARAMS:
        style["click_param"] = _param(form, action)
    return {name: value for name, value in style.items() if value not in ("", None)}


def _param(form: Form, action: int) -> Body:
    param = _named(form, f"click{action}.", PARAMS[action])
    if action == 6:
        articles = (_named(form, f"click6.{index}.", ARTICLE) for index in range(ARTICLES))
        param["information"] = [article for article in articles if article]
    return param


def _named(form: Form, prefix: str, names: tuple[str, ...]) -> Body:
    given = {name: form.get(prefix + name, "").strip() for name in names}
    numbers = {name: whole_number(value, _MAX_NUMBER) for name, value in given.items() if name in _NUMBERS}
    return {name: value if (number := numbers.get(name)) is None else number for name, value in given.items() if value}


def _ios(form: Form) -> Body:
    style: Body = {
        "sound": form.get("ios_sound", "").strip(),
        "badge": _integer(form, "ios_badge"),
        "category": form.get("category", "").strip(),
        "content-available": 1 if form.get("background") else "",
    }
    return {name: value for name, value in style.items() if value not in ("", None)}


def _send_to(form: Form, apps: ChosenApps) -> Body:
    appkey = {name: value for name, value in apps._asdict().items() if value}
    match form.get("audience", ""):
        case "everyone":
            scope = 0 if len(appkey) == 2 else 1 if apps.android else 2
            return {"appkey": appkey, "userScope": scope}
        case "alias":
            scope = 4 if form.get("alias_devices") == "all" else 3
            return {"appkey": appkey, "userScope": scope, "alias": values(form.get("alias", ""))}
        case "token":
            tokens = {name: found for name in appkey if (found := values(form.get(f"token_{name}", "")))}
            return {"appkey": appkey, "userScope": 5, "token": tokens}
        case "filter":
            return {"appkey": appkey} | _filter(form)
        case _:
            raise InputError("choose who gets the push")


def _filter(form: Form) -> Body:
    tags: Body = {name: numbers(form.get(name, ""), name) for name in ("tag", "not_tag")}
    tags |= {name: groups(form.get(name, "")) for name in ("stag", "not_stag")}
    found = {name: value for name, value in tags.items() if value}
    if not (options := _opt_filter(form)):
        return {"userScope": 6} | found
    return {"userScope": 8 if found else 7, "optfilter": {"android": options}} | found


def _opt_filter(form: Form) -> Body:
    names = [name + suffix for name in LISTS for suffix in ("", "_not")]
    options: Body = {name: values(form.get(name, "")) for name in names}
    options |= {name: models(form.get(name, ""), name) for name in ("model", "model_not")}
    activities = [f"activity_{days}" for days in DAYS]
    options |= {name: comparisons(form.get(name, ""), name) for name in activities}
    return {name: value for name, value in options.items() if value}


def _option(form: Form, zones: Zones) -> Body:
    period, unit = _integer(form, "period"), UNITS_S.get(form.get("period_unit", ""), 1)
    option: Body = {"period": period * unit if period is not None else None, "qps": _integer(form, "qps")}
    match form.get("when", ""):
        case "at":
            option |= {"timed": 1, "send_time": _send_time(form.get("send_at", ""), zones)}
        case "after":
            minutes = _integer(form, "after")
            option |= {"timed": 2, "send_time_interval": minutes * 60 if minutes is not None else None}
    return {name: value for name, value in option.items() if value is not None}


def _send_time(text: str, zones: Zones) -> str:
    """Return a time of the person as the interface writes it; InputError: it is no time."""
    try:
        local = datetime.fromisoformat(text).replace(tzinfo=zones.person)
        return local.astimezone(zones.interface).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        raise InputError("send_at must be a day and a time") from None


def _integer(form: Form, name: str) -> int | None:
    text = form.get(name, "").strip()
    try:
        return int(text) if text else None
    except ValueError:
        raise InputError(f"{name} must be a whole number") from None


def as_text(found: object) -> str:
    """Return a list of the request, nested or flat, or a single value, as the text of a form."""
    if not isinstance(found, list):
        return "" if found is None else text_of([[found]])
    return text_of(found if any(isinstance(entry, list) for entry in found) else [found])
