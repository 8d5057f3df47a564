"""The parts of accepted requests that the interfaces ignore: without them, the requests match the OpenAPI documents.

The documents show the type of every field, and say in words where a field is ignored, because generators of clients and
pages of documents show no conditions.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from edge.android import bodies
from edge.core.parsing.typed import integer_text
from edge.v2.push.targets import ALL_TARGETS, TARGETS

Body = dict[str, Any]
_NOTHING: tuple[Any, ...] = (None, "", [], {})
_NO_PARAMETER = (None, 0, 1)


def read_part(interface: str, path: str, body: Body) -> Body:
    """Return the body without the fields that an accepted request of the endpoint leaves unread."""
    read = copy.deepcopy(body)
    drop = _BY_ENDPOINT.get((interface, path))
    if drop is not None:
        drop(read)
    return read


def number(value: Any) -> int | None:
    """Return the integer that the value stands for, a string of digits too."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = integer_text(value) if isinstance(value, str) else integer_text(str(value))
    return int(text) if text is not None else int(value) if isinstance(value, float) and value.is_integer() else None


def _drop(fields: Any, *names: str) -> None:
    if isinstance(fields, dict):
        for name in names:
            fields.pop(name, None)


def _legacy_push(body: Body) -> None:
    if number(body.get("is_notif")) != 1:
        _drop(body, *bodies.Notification.__struct_fields__)


def _push(body: Body) -> None:
    send_to, style, option = body["sendTo"], body["msgStyle"], body.get("option")
    scope = number(send_to["userScope"])
    used = _used_platforms(send_to, scope)
    for platform, others in (("android", (2,)), ("ios", (1, 7, 8))):
        if scope in others:
            _drop(send_to["appkey"], platform)
        if platform not in used or not _is_notification(style["basic"]["is_notif"], platform):
            _drop(style, platform)
    for name in ALL_TARGETS:
        if name not in TARGETS.get(scope or 0, ()) and send_to.get(name) in _NOTHING:
            _drop(send_to, name)
    android = style.get("android")
    if isinstance(android, dict) and number(android.get("click_action")) in _NO_PARAMETER:
        _drop(android, "click_param")
    if isinstance(option, dict):
        timed = number(option.get("timed"))
        _drop(option, *(name for name, kind in (("send_time", 1), ("send_time_interval", 2)) if timed != kind))


def _used_platforms(send_to: Body, scope: int | None) -> set[str]:
    named = send_to["token"] if scope == 5 else send_to["appkey"]
    used = {platform for platform in ("android", "ios") if named.get(platform) is not None}
    return used - ({"android"} if scope == 2 else {"ios"} if scope in (1, 7, 8) else set())


def _is_notification(given: Any, platform: str) -> bool:
    return number(given.get(platform) if isinstance(given, dict) else given) == 1


def _statistics(body: Body) -> None:
    kind, param = number(body["type"]), body["param"]
    if kind == 1:
        _drop(param, "dur", "usertype")
        if number(param.get("msgid")) in (None, -1):
            _drop(param, "category", "Info", "info")
    else:
        _drop(param, "msgid", *(() if kind == 2 else ("usertype",)))
        if isinstance(param.get("dur"), dict) and number(param["dur"].get("timeScope")) != 3:
            _drop(param["dur"], "from", "to")
    if not number(param.get("category")):
        _drop(param, "Info", "info")
    elif "Info" in param:
        _drop(param, "info")


def _device(body: Body) -> None:
    """`params` and `param` are two names of one field; the other one may be null."""
    _drop(body, *(name for name in ("params", "param") if body.get(name) is None))


_BY_ENDPOINT: Mapping[tuple[str, str], Callable[[Body], None]] = {
    ("android", "/push"): _legacy_push,
    ("android", "/timed_msg"): _legacy_push,
    ("v2", "/v2/device"): _device,
    ("v2", "/v2/deviceinfo"): _device,
    ("v2", "/v2/push"): _push,
    ("v2", "/v2/statistics"): _statistics,
}
