"""Requests of POST /v2/push for tables of rules, and the checks of a table's rows.

A row is a body and the beginning of the error it causes, or None when it is accepted.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from edge.core.parsing.canonical import parse
from edge.v2.apps import push_apps
from edge.v2.push.requests import PushOrder, push_order
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from services.errors import InputError
from testkit.edge.role import NOW_MS, ZONE, EdgeInstallation

Row = tuple[dict[str, Any], str | None]
ANDROID, IOS, IOS_2 = "1111111111", "1222222222", "1333333333"
APP = App(name="Test", default_period_s=1234)
GONE = object()
NAME_40 = "世" * 13 + "a"


def request(**changes: Any) -> dict[str, Any]:
    """Return a broadcast to ANDROID with changed fields, named by path: `sendTo__userScope=3`; GONE removes a field."""
    body: dict[str, Any] = {
        "sendTo": {"appkey": {"android": ANDROID}, "userScope": 1},
        "msgStyle": {"basic": {"content": "hello", "is_notif": 1}},
    }
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = body
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
        if value is GONE:
            del place[name]
    return body


def read(body: dict[str, Any], now_ms: int = NOW_MS) -> PushOrder:
    raw = json.dumps(body).encode()
    return push_order(raw, push_apps(parse(raw)), lambda ref: APP, now_ms, ZoneInfo(ZONE))


def minutes_from_now(minutes: int) -> str:
    """Format a minute, counted from the start of the minute in which NOW_MS lies."""
    return datetime.fromtimestamp(NOW_MS // 60_000 * 60 + minutes * 60, ZoneInfo(ZONE)).strftime("%Y-%m-%d %H:%M")


def scope(number: int | str, **fields: Any) -> dict[str, Any]:
    return request(sendTo__userScope=number, **{f"sendTo__{name}": value for name, value in fields.items()})


def both(**changes: Any) -> dict[str, Any]:
    return request(**{"sendTo__userScope": 0, "sendTo__appkey": {"android": ANDROID, "ios": IOS}, **changes})


def android(**fields: Any) -> dict[str, Any]:
    return request(msgStyle__android=fields)


def ios(**fields: Any) -> dict[str, Any]:
    return request(sendTo__userScope=2, sendTo__appkey={"ios": IOS}, msgStyle__ios=fields)


def click(action: int | str, param: Any) -> dict[str, Any]:
    return android(click_action=action, click_param=param)


def timed(**option: Any) -> dict[str, Any]:
    return request(option=option)


def filtered(**options: Any) -> dict[str, Any]:
    return scope(7, optfilter={"android": options})


def landing(**fields: Any) -> dict[str, Any]:
    return click(4, {"picture-addr": "http://p", **fields})


def pop_up(mode: int | str, **fields: Any) -> dict[str, Any]:
    return click(5, {"popup-mode": mode, "picture-addr": "http://p", **fields})


def flow(mode: int, entries: int, top: str = "top", **entry: Any) -> dict[str, Any]:
    return click(6, {"flow-mode": mode, "top-title": top, "information": [entry] * entries})


def check_rule(body: dict[str, Any], problem: str | None) -> None:
    """Check one row against the parser."""
    if problem is None:
        assert read(body).pushes
        return
    with pytest.raises(InputError) as refusal:
        read(body)
    assert str(refusal.value).startswith(problem)


async def check_rules_through_http(installation: EdgeInstallation, rows: Sequence[Row]) -> None:
    """Check the rows against a running edge, with the appkeys of apps that exist."""
    android_app = await installation.app()
    first, second = await installation.app(PLATFORM_IOS), await installation.app(PLATFORM_IOS)
    names = {ANDROID: android_app.appkey, IOS: first.appkey, IOS_2: second.appkey}
    for body, problem in rows:
        text = json.dumps(body)
        for placeholder, appkey in names.items():
            text = text.replace(placeholder, appkey)
            problem = problem and problem.replace(placeholder, appkey)
        real = json.loads(text)
        answer = await installation.push(real, *signers(real, names))
        if problem is None:
            assert answer["result"] == 0 or answer["desc"] == "token not found", body
        else:
            assert answer["result"] == 400, body
            assert answer["desc"].startswith(f"input error: {problem}"), body


def signers(body: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Return the existing appkeys of the request, in its order."""
    send_to = body.get("sendTo")
    appkeys = send_to.get("appkey") if isinstance(send_to, dict) else None
    if not isinstance(appkeys, dict):
        return [names[ANDROID]]
    listed = appkeys.get("ios", [])
    keys = [appkeys.get("android"), *(listed if isinstance(listed, list) else [listed])]
    return [str(key) for key in keys if str(key) in names.values()]
