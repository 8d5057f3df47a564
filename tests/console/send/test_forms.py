"""A form is a request of the v2 interface and back: every click action and every audience, without a loss."""

import json
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from console.send.forms import Body, ChosenApps, Zones, body_of, form_of, form_of_text
from edge.core.parsing.canonical import parse
from edge.v2.apps import push_apps
from edge.v2.push.requests import push_order
from protos.registry.v1.apps_pb2 import App

APPS = ChosenApps("1", "2")
ZONES = Zones(ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Shanghai"))
NOW_MS = 1_790_000_000_000
PICTURE = {"picture-addr": "https://example.org/p.png", "picture-hyperlink": "https://example.org/?a=b,c"}
TIP = {"tip-content": "More", "tip-url": "https://example.org/tip", "download-condition": 1}
ARTICLES = [
    {"title": "One", "text-abstract": "In short", "text-detail": "At\nlength"},
    {"title": "Two", "text-abstract": "Shorter", "picture-addr": "https://example.org/2.png"},
]
PARAMS: dict[int, Any] = {
    2: 'https://example.org/?q=a,b"c',
    3: "intent:#Intent;component=a/b;end",
    4: {**PICTURE, **TIP, "jump-button": 1, "jump-seconds": 5},
    5: {**PICTURE, **TIP, "popup-mode": 2, "title": "Sale"},
    6: {"flow-mode": 1, "top-title": "Today", "download-condition": 0, "information": ARTICLES},
    7: {"url": "https://example.org/rich"},
}
OPTIONS = {
    "locate": ["上海市", "北京市"],
    "osversion_not": ["9"],
    "channel": ["a,b", 'c"d', "e"],
    "operator": ["cm"],
    "phone": ["brand"],
    "model": {"brand": ["one", "two, three"]},
    "model_not": {"other": ["x"]},
    "activity_7": {">=": 3, "<": 50},
}
AUDIENCES: dict[str, Body] = {
    "everyone": {"userScope": 0},
    "latest device of aliases": {"userScope": 3, "alias": ["a,b", "c"]},
    "all devices of aliases": {"userScope": 4, "alias": ["a"]},
    "tokens": {"userScope": 5, "token": {"android": ["t1", "t2"], "ios": ["ab" * 32]}},
    "tags": {"userScope": 6, "tag": [[1, 2], [-3]], "not_tag": [[4]]},
    "string tags": {"userScope": 6, "stag": [["a,b", "c"], ["d"]], "not_stag": [['e"']]},
}
OF_ANDROID: dict[str, Body] = {
    "attributes": {"userScope": 7, "optfilter": {"android": OPTIONS}},
    "tags and attributes": {"userScope": 8, "stag": [["a"]], "optfilter": {"android": OPTIONS}},
}


def request(send_to: Body, **changes: Any) -> Body:
    style = {"title": "T", "sound": True, "vibrate": False, "unremovable": True, "badge": -1, "click_action": 1}
    return {
        "sendTo": {"appkey": APPS._asdict(), **send_to},
        "msgStyle": {
            "basic": {"content": {"android": "Two\nlines", "ios": "On iOS"}, "is_notif": 1},
            "android": {**style, **changes},
            "ios": {"sound": "chime.caf", "badge": 3, "category": "NEWS", "content-available": 1},
        },
        "option": {"period": 7200, "qps": 5, "timed": 1, "send_time": "2026-09-30 14:05"},
        "extra": "campaign, 7",
    }


def check(body: Body) -> None:
    """Check that the form of a request makes this request again, and that the interface accepts it."""
    form = form_of(body, ZONES)
    again = body_of(form, ChosenApps(**body["sendTo"]["appkey"]), ZONES)
    assert again == body
    raw = json.dumps(again).encode()
    order = push_order(
        raw, push_apps(parse(raw)), lambda ref: App(appkey=ref.appkey, name="N"), NOW_MS, ZONES.interface
    )
    assert order.pushes


@pytest.mark.parametrize("audience", AUDIENCES)
def test_every_audience_is_kept(audience: str) -> None:
    check(request(AUDIENCES[audience]))


@pytest.mark.parametrize("audience", OF_ANDROID)
def test_every_audience_of_android_alone_is_kept(audience: str) -> None:
    body = request({**OF_ANDROID[audience], "appkey": {"android": APPS.android}})
    body["msgStyle"] = {"basic": {"content": "Hi", "is_notif": 1}, "android": body["msgStyle"]["android"]}
    check(body)


@pytest.mark.parametrize("action", [0, 1, *PARAMS])
def test_every_click_action_is_kept(action: int) -> None:
    param = {"click_param": PARAMS[action]} if action in PARAMS else {}
    check(request({"userScope": 0}, click_action=action, **param))


def test_a_message_for_the_app_alone_stays_one() -> None:
    body = request({"userScope": 0})
    body["msgStyle"] = {"basic": {"content": "{}", "is_notif": 0}}
    check(body)


def test_the_time_is_the_persons_in_the_form_and_the_interfaces_in_the_request() -> None:
    assert form_of(request({"userScope": 0}), ZONES)["send_at"] == "2026-09-30T08:05"


def test_a_request_of_a_legacy_interface_is_copied() -> None:
    legacy: dict[str, Any] = {
        "message": "Hi",
        "title": "T",
        "is_notif": "1",
        "click_action": "open_url",
        "open_url": "https://a.b",
    }
    form = form_of_text(
        json.dumps({**legacy, "filter_v2": [[1, 2]], "optfilter": {"phone": ["x"]}, "period": 60}), ZONES
    )
    assert body_of(form, ChosenApps("1"), ZONES) == {
        "sendTo": {
            "appkey": {"android": "1"},
            "userScope": 8,
            "tag": [[1, 2]],
            "optfilter": {"android": {"phone": ["x"]}},
        },
        "msgStyle": {
            "basic": {"content": "Hi", "is_notif": 1},
            "android": {
                "title": "T",
                "sound": False,
                "vibrate": False,
                "unremovable": False,
                "click_action": 2,
                "click_param": "https://a.b",
            },
        },
        "option": {"period": 60},
    }
    assert form_of_text(json.dumps({"message": "x", "alias": ["a"], "is_notif": 0}), ZONES)["audience"] == "alias"
    assert form_of_text("no request", ZONES) == form_of_text("[]", ZONES) == {}
