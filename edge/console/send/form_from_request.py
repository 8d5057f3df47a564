"""The form that stands for a v2 request, to change a composed push or to copy an earlier one of any interface."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from edge.console.send.request_from_form import ARTICLE, DAYS, LISTS, PARAMS, UNITS_S, Zones, as_text
from edge.console.send.text_lists import text_of

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
