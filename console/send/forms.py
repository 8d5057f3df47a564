"""The form of a push and the v2 request that it stands for, each made of the other; nothing is checked here."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from console.send.values import Value
from console.shell.numbers import whole_number
from services.errors import Code, InputError

# Lists in text fields: lines of values between commas, where a value with a comma stands in quotation marks.

_WIDE_COMMA = re.compile(r'"[^"]*"|，')
_TO_BE_QUOTED = re.compile(r'[,，"\r\n]')
_COMPARISON = re.compile(r"(>=|<=|>|<|=)\s*(\d+)", re.ASCII)


def lines_of_values(text: str) -> list[list[str]]:
    """Return the values of each line that is not empty."""
    text = _WIDE_COMMA.sub(lambda found: "," if found[0] == "，" else found[0], text)
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    found = ([value.strip() for value in line if value.strip()] for line in lines)
    return [line for line in found if line]


def values(text: str) -> list[str]:
    """Return the values of all lines."""
    return [value for line in lines_of_values(text) for value in line]


def numbers(text: str, at: str) -> list[list[int]]:
    """Return the numbers of each line. InputError: something is not a number."""
    return [[_number_at(value, at) for value in line] for line in lines_of_values(text)]


def text_of(lines: Iterable[Sequence[object]]) -> str:
    """Return the text whose values these are, a line for each list."""
    return "\n".join(",".join(map(_quoted, line)) for line in lines)


def _quoted(value: object) -> str:
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if _TO_BE_QUOTED.search(text) else text


def comparisons(text: str, at: str) -> dict[str, int]:
    """Return comparisons such as `>= 3, < 50` by their operator. InputError: the text is something else."""
    found: dict[str, int] = {}
    for value in values(text):
        match = _COMPARISON.fullmatch(value)
        if match is None or match[1] in found:
            raise InputError(Code.NO_COMPARISONS, at=at)
        found[match[1]] = int(match[2])
    return found


def models(text: str, at: str) -> dict[str, list[str]]:
    """Return models by brand, from lines such as `brand: one, two`. InputError: a line has another form."""
    found: dict[str, list[str]] = {}
    for line in filter(str.strip, text.splitlines()):
        brand, colon, rest = line.replace("：", ":").partition(":")
        if not colon or not brand.strip() or not values(rest):
            raise InputError(Code.NO_MODELS, at=at)
        found.setdefault(brand.strip(), []).extend(values(rest))
    return found


TAG_FIELDS = ("tag", "not_tag", "stag", "not_stag")
MODEL_FIELDS = ("model", "model_not")


def with_values(text: str, name: str, chosen: Sequence[Value], *, together: bool) -> str:
    """Return the text of a field with values that were chosen from a list, those that it has already once.

    Of a field of tags they stand on lines of their own, any of which will do; `together`: on one line, all of which
    a device must have.
    """
    if name in MODEL_FIELDS:
        by_brand: dict[str, list[str]] = {}
        for value in chosen:
            by_brand.setdefault(value.brand, []).append(value.text)
        added = [f"{brand}: {text_of([found])}" for brand, found in by_brand.items()]
        return "\n".join([*filter(str.strip, text.splitlines()), *added])
    texts = [value.text for value in chosen]
    if name not in TAG_FIELDS:
        return text_of([list(dict.fromkeys([*values(text), *texts]))])
    lines = lines_of_values(text)
    added_lines = [texts] if together else [[each] for each in texts]
    return text_of([*lines, *(line for line in added_lines if line not in lines)])


def _number_at(value: str, at: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InputError(Code.NO_WHOLE_NUMBERS, at=at, text=value) from None


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
    """Return the request, without empty fields. InputError: the text of a field does not fit the field's type."""
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


def audience_body(form: Form, apps: ChosenApps) -> Body:
    """Return a request with the audience of a form, and nothing else of it. InputError as for `body_of`."""
    form = {name: value.replace("\r\n", "\n") for name, value in form.items()}
    return {"sendTo": _send_to(form, apps), "msgStyle": {"basic": {"content": "-", "is_notif": 0}}}


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
            if apps.ios and _opt_filter(form):
                raise InputError(Code.ATTRIBUTES_OF_ANDROID)
            return {"appkey": appkey} | _filter(form)
        case _:
            raise InputError(Code.NO_AUDIENCE)


def _filter(form: Form) -> Body:
    tags: Body = {name: numbers(form.get(name, ""), name) for name in ("tag", "not_tag")}
    tags |= {name: lines_of_values(form.get(name, "")) for name in ("stag", "not_stag")}
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
        raise InputError(Code.NO_DAY_AND_TIME, at="send_at") from None


def _integer(form: Form, name: str) -> int | None:
    text = form.get(name, "").strip()
    try:
        return int(text) if text else None
    except ValueError:
        raise InputError(Code.NO_WHOLE_NUMBER, at=name) from None


def as_text(found: object) -> str:
    """Return a list of the request, nested or flat, or a single value, as the text of a form."""
    if not isinstance(found, list):
        return "" if found is None else text_of([[found]])
    return text_of(found if any(isinstance(entry, list) for entry in found) else [found])


# The form that stands for a v2 request, to change a composed push or to copy an earlier one of any interface.

_ACTIONS = {"open_app": 1, "open_url": 2, "intent": 3}


def form_of_text(request_json: str, zones: Zones) -> dict[str, str]:
    """Return the form of a recorded request; an empty one for a text that is no request."""
    try:
        body: Any = msgspec.json.decode(request_json)
    except msgspec.DecodeError:
        return {}
    if not isinstance(body, dict):
        return {}
    return form_of(body if "msgStyle" in body else _of_legacy(body), zones)


def form_of(body: Mapping[str, Any], zones: Zones) -> dict[str, str]:
    """Return the fields of the form, without those that are empty."""
    style, send_to, option = _object(body, "msgStyle"), _object(body, "sendTo"), _object(body, "option")
    fields: dict[str, Any] = {"extra": body.get("extra")}
    fields |= (
        _of_basic(_object(style, "basic")) | _of_android(_object(style, "android")) | _of_ios(_object(style, "ios"))
    )
    fields |= _of_target(send_to) | _of_option(option, zones)
    return {name: str(value) for name, value in fields.items() if value is not None and value != ""}


def _of_basic(basic: Mapping[str, Any]) -> dict[str, Any]:
    content, is_notif = basic.get("content"), basic.get("is_notif", 1)
    if isinstance(is_notif, dict):
        is_notif = next(iter(is_notif.values()), 1)
    if not isinstance(content, dict):
        return {"content": content, "is_notif": is_notif}
    first = content.get("android") or content.get("ios")
    return {"content": first, "content_ios": content.get("ios") if content.get("android") else "", "is_notif": is_notif}


def _of_android(style: Mapping[str, Any]) -> dict[str, Any]:
    action = _number(style.get("click_action"))
    fields: dict[str, Any] = {
        "title": style.get("title"),
        "sound": "1" if style.get("sound") else "",
        "vibrate": "1" if style.get("vibrate") else "",
        "removable": "1" if style.get("unremovable") else "",
        "badge": style.get("badge"),
        "click_action": action,
    }
    param = style.get("click_param")
    if action in (2, 3):
        fields["url" if action == 2 else "intent"] = param
    elif isinstance(param, dict):
        fields |= {f"click{action}.{name}": param.get(name) for name in PARAMS.get(action, ())}
        for index, article in enumerate(param.get("information") or ()):
            fields |= {f"click6.{index}.{name}": article.get(name) for name in ARTICLE if isinstance(article, dict)}
    return fields


def _of_ios(style: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ios_sound": style.get("sound"),
        "ios_badge": style.get("badge"),
        "category": style.get("category"),
        "background": "1" if style.get("content-available") else "",
    }


def _of_target(send_to: Mapping[str, Any]) -> dict[str, Any]:
    scope = _number(send_to.get("userScope"))
    tokens = send_to.get("token")
    by_platform = tokens if isinstance(tokens, dict) else {}
    options = _object(_object(send_to, "optfilter"), "android")
    fields: dict[str, Any] = {
        "audience": {3: "alias", 4: "alias", 5: "token"}.get(scope, "everyone" if scope < 3 else "filter"),
        "alias": as_text(send_to.get("alias")),
        "alias_devices": "all" if scope == 4 else "latest",
    }
    fields |= {f"token_{name}": as_text(by_platform.get(name)) for name in ("android", "ios")}
    fields |= {name: as_text(send_to.get(name)) for name in ("tag", "not_tag", "stag", "not_stag")}
    fields |= {name: as_text(options.get(name)) for kind in LISTS for name in (kind, f"{kind}_not")}
    fields |= {name: _models(options.get(name)) for name in ("model", "model_not")}
    return fields | {name: _comparisons(options.get(name)) for name in (f"activity_{days}" for days in DAYS)}


def audience_form(send_to: Body) -> dict[str, str]:
    """Return the fields of the form for an audience, those that are empty too."""
    return {name: "" if value is None else str(value) for name, value in _of_target(send_to).items()}


def _of_option(option: Mapping[str, Any], zones: Zones) -> dict[str, Any]:
    period = _number(option.get("period"))
    unit = next((unit for unit in ("d", "h", "min") if period and not period % UNITS_S[unit]), "s")
    fields: dict[str, Any] = {"period": period // UNITS_S[unit] or "", "period_unit": unit, "qps": option.get("qps")}
    match _number(option.get("timed")):
        case 1:
            return fields | {"when": "at", "send_at": _local(option.get("send_time"), zones)}
        case 2:
            return fields | {"when": "after", "after": _number(option.get("send_time_interval")) // 60}
        case _:
            return fields | {"when": "now"}


def _of_legacy(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request of a legacy interface as far as v2 has the same."""
    names = ("title", "sound", "vibrate", "unremovable")
    android: dict[str, Any] = {name: body[name] for name in names if name in body}
    action = str(body.get("click_action", ""))
    android["click_action"] = _ACTIONS.get(action, 0)
    android["click_param"] = body.get(action)
    is_ios = "transparent" in body or not any(name in body for name in ("is_notif", *names, "click_action"))
    is_notif = (0 if _number(body.get("transparent")) else 1) if is_ios else _number(body.get("is_notif"))
    send_to = {"userScope": 0, "tag": body.get("filter_v2") or body.get("filter")}
    if body.get("alias"):
        send_to |= {"userScope": 4 if _number(body.get("alias_send_all")) else 3, "alias": body["alias"]}
    elif body.get("token"):
        send_to |= {"userScope": 5, "token": {"ios" if is_ios else "android": body["token"]}}
    elif body.get("optfilter") or send_to["tag"]:
        send_to |= {"userScope": 8, "optfilter": {"android": body.get("optfilter")}}
    message = body.get("message")
    return {
        "msgStyle": {
            "basic": {"content": message if isinstance(message, str) else "", "is_notif": is_notif},
            "android": android,
            "ios": {"badge": body.get("badge"), "category": body.get("category")},
        },
        "sendTo": send_to,
        "option": {"period": body.get("period"), "qps": body.get("qps")},
        "extra": body.get("extra"),
    }


def _local(text: object, zones: Zones) -> str:
    try:
        moment = datetime.strptime(str(text), "%Y-%m-%d %H:%M").replace(tzinfo=zones.interface)
    except ValueError:
        return ""
    return moment.astimezone(zones.person).strftime("%Y-%m-%dT%H:%M")


def _models(given: object) -> str:
    objects = given if isinstance(given, list) else [given]
    pairs = [pair for each in objects if isinstance(each, dict) for pair in each.items()]
    return "\n".join(f"{brand}: {text_of([found if isinstance(found, list) else [found]])}" for brand, found in pairs)


def _comparisons(given: object) -> str:
    return ", ".join(f"{operator} {opens}" for operator, opens in given.items()) if isinstance(given, dict) else ""


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name)
    return found if isinstance(found, dict) else {}


def _number(value: object) -> int:
    """Return an integer or a string of digits as a number; 0 for anything else."""
    try:
        return int(value) if isinstance(value, int | str) else 0
    except ValueError:
        return 0
