"""Every rule of POST /v2/push, one row each: at its limit and one past it. `None` stands for accepted."""

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from edge.core.parsing.canonical import parse
from edge.core.parsing.regions import REGIONS
from edge.v2.apps import push_apps
from edge.v2.push.requests import PushOrder, push_order
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.runtime.errors import InputError
from testkit.edge.role import NOW_MS, ZONE, EdgeInstallation

ANDROID, IOS, IOS_2 = "1111111111", "1222222222", "1333333333"
DAY_S = 86_400
GONE = object()


def request(**changes: Any) -> dict[str, Any]:
    """ANDROID broadcast to Android, changed at paths: `sendTo__userScope=3`; GONE takes a field away."""
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
    return push_order(raw, push_apps(parse(raw)), lambda app: 1234, now_ms, ZoneInfo(ZONE))


def minutes_from_now(minutes: int) -> str:
    """NOW_MS lies in the middle of a minute."""
    return datetime.fromtimestamp(NOW_MS // 60_000 * 60 + minutes * 60, ZoneInfo(ZONE)).strftime("%Y-%m-%d %H:%M")


def scope(number: int, **fields: Any) -> dict[str, Any]:
    return request(sendTo__userScope=number, **{f"sendTo__{name}": value for name, value in fields.items()})


def both(**changes: Any) -> dict[str, Any]:
    return request(**{"sendTo__userScope": 0, "sendTo__appkey": {"android": ANDROID, "ios": IOS}, **changes})


def android(**fields: Any) -> dict[str, Any]:
    return request(msgStyle__android=fields)


def ios(**fields: Any) -> dict[str, Any]:
    return request(sendTo__userScope=2, sendTo__appkey={"ios": IOS}, msgStyle__ios=fields)


def click(action: int, param: Any) -> dict[str, Any]:
    return android(click_action=action, click_param=param)


def timed(**option: Any) -> dict[str, Any]:
    return request(option=option)


def filtered(**options: Any) -> dict[str, Any]:
    return scope(7, optfilter={"android": options})


def landing(**fields: Any) -> dict[str, Any]:
    return click(4, {"picture-addr": "http://p", **fields})


def pop_up(mode: int, **fields: Any) -> dict[str, Any]:
    return click(5, {"popup-mode": mode, "picture-addr": "http://p", **fields})


def flow(mode: int, entries: int, top: str = "top", **entry: Any) -> dict[str, Any]:
    return click(6, {"flow-mode": mode, "top-title": top, "information": [entry] * entries})


NAME_40 = "世" * 13 + "a"
PARAM = "msgStyle.android.click_param"
FILTER = "sendTo.optfilter.android"

ROWS: list[tuple[dict[str, Any], str | None]] = [
    # the parts of a body
    (request(), None),
    (request(sendTo=GONE), "sendTo is missing"),
    (request(sendTo=[]), "sendTo must be an object"),
    (request(msgStyle=GONE), "msgStyle is missing"),
    (request(msgStyle="x"), "msgStyle must be an object"),
    (request(option=None, extra=None), None),
    (request(option=[]), "option must be an object"),
    (request(extra="free"), None),
    (request(extra={"a": 1}), "extra must be a string"),
    (request(whatever={"deep": [1, {"x": None}]}, sendTo__unknown=[[]], msgStyle__x=1, option={"y": 2}), None),
    # userScope and appkey
    (request(sendTo__userScope=GONE), "sendTo.userScope is missing"),
    (request(sendTo__userScope="1"), "sendTo.userScope must be an integer"),
    (request(sendTo__userScope=1.0), "sendTo.userScope must be an integer"),
    (request(sendTo__userScope=True), "sendTo.userScope must be an integer"),
    (request(sendTo__userScope=9), "sendTo.userScope must be an integer from 0 to 8"),
    (request(sendTo__userScope=-1), "sendTo.userScope must be an integer from 0 to 8"),
    (request(sendTo__appkey=GONE), "sendTo.appkey is missing"),
    (request(sendTo__appkey=ANDROID), "sendTo.appkey must be an object"),
    (request(sendTo__appkey={}), "sendTo.appkey.android is missing"),
    (request(sendTo__appkey={"android": ""}), "sendTo.appkey.android must be a string"),
    (request(sendTo__appkey={"android": [ANDROID]}), "sendTo.appkey.android must be a string"),
    (request(sendTo__appkey={"android": int(ANDROID)}), None),
    (request(sendTo__appkey={"ios": IOS}), "sendTo.appkey.android is missing"),
    (scope(2), "sendTo.appkey.ios is missing"),
    (scope(0), "sendTo.appkey.ios is missing"),
    (scope(0, appkey={"ios": IOS}), "sendTo.appkey.android is missing"),
    (both(), None),
    (both(sendTo__appkey={"android": ANDROID, "ios": [IOS, int(IOS_2)]}), None),
    (both(sendTo__appkey={"android": ANDROID, "ios": []}), "sendTo.appkey.ios must be a string or a list of strings"),
    (
        both(sendTo__appkey={"android": ANDROID, "ios": [IOS, None]}),
        "sendTo.appkey.ios must be a string or a list of strings",
    ),
    (both(sendTo__appkey={"android": ANDROID, "ios": [IOS, IOS]}), "sendTo.appkey.ios names an app twice"),
    (scope(7, appkey={"ios": IOS}, optfilter={"android": {"phone": ["x"]}}), "sendTo.appkey.android is missing"),
    # alias
    (scope(3, alias="alice"), None),
    (scope(4, alias=["alice", "bob"]), None),
    (scope(3), "sendTo.alias is missing"),
    (scope(3, alias=None), "sendTo.alias is missing"),
    (scope(3, alias=7), "sendTo.alias must be a string or a list"),
    (scope(3, alias=""), "sendTo.alias must not be empty"),
    (scope(3, alias=[]), "sendTo.alias must not be empty"),
    (scope(3, alias=["a", 7]), "sendTo.alias[1] must be a string"),
    (scope(3, alias=["a", ""]), "sendTo.alias[1] must have 1 to 40 bytes"),
    (scope(3, alias=NAME_40), None),
    (scope(3, alias=NAME_40 + "b"), "sendTo.alias must have 1 to 40 bytes"),
    (scope(4, alias=["a", "b" * 41]), "sendTo.alias[1] must have 1 to 40 bytes"),
    (scope(4, alias=["a"] * 1000), None),
    (scope(4, alias=["a"] * 1001), "sendTo.alias must have at most 1000 entries"),
    # token
    (scope(5, token={"android": "t"}), None),
    (scope(5, token={"android": ["t"] * 1000}), None),
    (scope(5, token={"android": ["t"] * 1001}), "sendTo.token.android must have at most 1000 entries"),
    (scope(5, token={"android": []}), "sendTo.token.android must not be empty"),
    (scope(5, token={"android": ""}), "sendTo.token.android must not be empty"),
    (scope(5, token={"android": 5}), "sendTo.token.android must be a string or a list"),
    (scope(5, token={"android": ["t", None]}), "sendTo.token.android[1] must be a string"),
    (scope(5, token="t"), "sendTo.token must be an object"),
    (scope(5), "sendTo.token is missing"),
    (scope(5, token={}), "sendTo.token must name tokens of android or ios"),
    (scope(5, token={"ios": "t"}), "sendTo.appkey.ios is missing: sendTo.token.ios needs it"),
    (scope(5, appkey={"ios": IOS}, token={"android": "t"}), "sendTo.appkey.android is missing: sendTo.token.android"),
    (scope(5, appkey={"ios": IOS}, token={"ios": "t"}), None),
    (scope(5, appkey={"ios": IOS}, token={"ios": ["t"]}), None),
    (scope(5, appkey={"ios": IOS}, token={"ios": {IOS: "t"}}), "sendTo.token.ios must be a string or a list"),
    (scope(5, appkey={"android": ANDROID, "ios": IOS}, token={"ios": "t"}), None),
    (scope(5, appkey={"ios": [IOS, IOS_2]}, token={"ios": {IOS: "t", IOS_2: ["u", "v"]}}), None),
    (scope(5, appkey={"ios": [IOS, IOS_2]}, token={"ios": {IOS: "t"}}), None),
    (scope(5, appkey={"ios": [IOS, IOS_2]}, token={"ios": "t"}), "sendTo.token.ios must be an object"),
    (scope(5, appkey={"ios": [IOS, IOS_2]}, token={"ios": {}}), "sendTo.token.ios must not be empty"),
    (
        scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS_2: "t"}}),
        f"sendTo.token.ios.{IOS_2} is not one of sendTo.appkey.ios",
    ),
    (scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS: 7}}), f"sendTo.token.ios.{IOS} must be a string or a list"),
    (scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS: ["t", 7]}}), f"sendTo.token.ios.{IOS}[1] must be a string"),
    (
        scope(5, appkey={"ios": [IOS]}, token={"ios": {IOS: ["t"] * 1001}}),
        f"sendTo.token.ios.{IOS} must have at most 1000",
    ),
    # tag and stag
    (scope(6, tag=[[1, 2], [3]]), None),
    (scope(6, tag=[1, 2]), None),
    (scope(6, not_tag=[[1]]), None),
    (scope(6, tag=[[1]], not_tag=[[2]]), None),
    (scope(6, tag=[[-32727, 32727]]), None),
    (scope(6, tag=[[-32728]]), "sendTo.tag[0][0] must be an integer from -32727 to 32727"),
    (scope(6, not_tag=[[0, 32728]]), "sendTo.not_tag[0][1] must be an integer from -32727 to 32727"),
    (scope(6, tag=[32728]), "sendTo.tag[0] must be an integer from -32727 to 32727"),
    (scope(6, tag=[["1"]]), "sendTo.tag[0][0] must be an integer"),
    (scope(6, tag=["1"]), "sendTo.tag[0] must be an integer or a list"),
    (scope(6, tag=[1, [2]]), "sendTo.tag must be a list of lists"),
    (scope(6, tag=[[]]), "sendTo.tag[0] must not be empty"),
    (scope(6, tag=5), "sendTo.tag must be a list"),
    (scope(6), "sendTo.tag is missing: name a tag, not_tag, stag or not_stag"),
    (scope(6, tag=[], stag=None), "sendTo.tag is missing: name a tag, not_tag, stag or not_stag"),
    (scope(6, stag=[["a", "b"], ["c"]], not_stag=[["d"]]), None),
    (scope(6, stag=["a", "b"]), None),
    (scope(6, stag=[["a" * 40]]), None),
    (scope(6, stag=[[NAME_40]]), None),
    (scope(6, stag=[["a" * 41]]), "sendTo.stag must have 1 to 40 bytes"),
    (scope(6, not_stag=[[NAME_40 + "b"]]), "sendTo.not_stag must have 1 to 40 bytes"),
    (scope(6, stag=[["a", ""]]), "sendTo.stag[0][1] must not be empty"),
    (scope(6, stag=[["a", 1]]), "sendTo.stag[0][1] must be a string"),
    (scope(6, tag=[[1]], stag=[["a"]]), "sendTo.stag and sendTo.not_stag cannot be combined"),
    (scope(6, not_tag=[[1]], not_stag=[["a"]]), "sendTo.stag and sendTo.not_stag cannot be combined"),
    (scope(6, tag=[[1]], stag=[], not_stag=None), None),
    (scope(6, tag=[[1]], token={"android": "t"}), "sendTo: token or alias cannot be combined with a filter"),
    (scope(3, alias="a", stag=[["a"]]), "sendTo: token or alias cannot be combined with a filter"),
    (scope(5, token={"android": "t"}, optfilter={"android": {}}), "sendTo: token or alias cannot be combined"),
    (scope(3, alias="a", token={"android": "t"}, tag=[], stag=None, optfilter={}), None),
    (scope(1, tag="read by nobody", alias=7), "sendTo: token or alias cannot be combined with a filter"),
    (scope(1, tag="read by nobody"), None),
    # optfilter
    (scope(7), "sendTo.optfilter is missing"),
    (scope(7, optfilter={}), f"{FILTER} is missing"),
    (scope(7, optfilter={"ios": {}}), f"{FILTER} is missing"),
    (scope(7, optfilter=[]), "sendTo.optfilter must be an object"),
    (filtered(), f"{FILTER} must name at least one option"),
    (filtered(locate=None), f"{FILTER} must name at least one option"),
    (filtered(locate=sorted(REGIONS)), None),
    (filtered(locate=["上海"]), f"{FILTER}.locate[0] is not a known region: 上海"),
    (filtered(locate_not=["北京市", "Atlantis"]), f"{FILTER}.locate_not[1] is not a known region: Atlantis"),
    (filtered(osversion=["5.0"], osversion_not=["6"], appversion=["1"], appversion_not=["2"]), None),
    (filtered(channel=["c"], channel_not=["d"], phone=["p"], phone_not=["q"], operator=["cm"]), None),
    (filtered(operator_not=["any other carrier"]), None),
    (filtered(phone="p"), f"{FILTER}.phone must be a list"),
    (filtered(phone=[]), f"{FILTER}.phone must not be empty"),
    (filtered(phone=[7]), f"{FILTER}.phone[0] must be a string"),
    (filtered(phone=[""]), f"{FILTER}.phone[0] must not be empty"),
    (filtered(colour=["red"]), f"{FILTER}.colour is not known"),
    (filtered(activity_8={">": 1}), f"{FILTER}.activity_8 is not known"),
    (filtered(model={"b": "m"}, model_not={"b": ["m", "n"]}), None),
    (filtered(model=[{"b": "m"}, {"b": "n"}]), None),
    (filtered(model=["m"]), f"{FILTER}.model[0] must be an object"),
    (filtered(model={"b": 7}), f"{FILTER}.model[...] must be a string or a list"),
    (filtered(model={}), f"{FILTER}.model must not be empty"),
    (filtered(activity_1={">": 0}, activity_7={"<": 1}, activity_30={">=": 1, "<=": 9}, activity_90={"=": 3}), None),
    (filtered(activity_7={}), f"{FILTER}.activity_7 must not be empty"),
    (filtered(activity_7={"==": 1}), f"{FILTER}.activity_7 must compare with one of >, <, >=, <=, =, not with =="),
    (filtered(activity_7={">": "1"}), f"{FILTER}.activity_7[...] must be an integer"),
    (filtered(activity_7={">": -1}), f"{FILTER}.activity_7[...] must be an integer from 0 to 4294967295"),
    (filtered(activity_7=[1]), f"{FILTER}.activity_7 must be an object"),
    (scope(8, tag=[[1]], optfilter={"android": {"phone": ["p"]}}), None),
    (scope(8, tag=[[1]]), "sendTo.optfilter is missing"),
    (scope(8, optfilter={"android": {"phone": ["p"]}}), "sendTo.tag is missing"),
    # basic
    (request(msgStyle__basic=GONE), "msgStyle.basic is missing"),
    (request(msgStyle__basic__content=GONE), "msgStyle.basic.content is missing"),
    (request(msgStyle__basic__content=7), "msgStyle.basic.content must be a string or an object"),
    (request(msgStyle__basic__content=""), "msgStyle.basic.content must not be empty"),
    (request(msgStyle__basic__is_notif=GONE), "msgStyle.basic.is_notif is missing"),
    (request(msgStyle__basic__is_notif=0), None),
    (request(msgStyle__basic__is_notif=2), "msgStyle.basic.is_notif must not be 2"),
    (request(msgStyle__basic__is_notif="1"), "msgStyle.basic.is_notif must be an integer or an object"),
    (request(msgStyle__basic__is_notif=True), "msgStyle.basic.is_notif must be an integer or an object"),
    (both(msgStyle__basic={"content": {"android": "a", "ios": "i"}, "is_notif": {"android": 1, "ios": 0}}), None),
    (both(msgStyle__basic__content={"android": "a"}), "msgStyle.basic.content.ios is missing"),
    (both(msgStyle__basic__is_notif={"ios": 1}), "msgStyle.basic.is_notif.android is missing"),
    (both(msgStyle__basic__is_notif={"android": 1, "ios": 3}), "msgStyle.basic.is_notif.ios must not be 3"),
    (request(msgStyle__basic__content={"android": "a"}), None),
    (request(msgStyle__basic__content={"ios": "a"}), "msgStyle.basic.content.android is missing"),
    # android
    (android(sound=True, vibrate=True, unremovable=False, title="t", badge=3), None),
    (android(sound=1), "msgStyle.android.sound must be true or false"),
    (android(vibrate="true"), "msgStyle.android.vibrate must be true or false"),
    (android(unremovable=0), "msgStyle.android.unremovable must be true or false"),
    (android(title=5), "msgStyle.android.title must be a string"),
    (android(badge=-1), None),
    (android(badge=-2), "msgStyle.android.badge must be an integer from -1 to 2147483647"),
    (android(badge=2**31), "msgStyle.android.badge must be an integer from -1 to 2147483647"),
    (request(msgStyle__android="x"), "msgStyle.android must be an object"),
    (request(msgStyle__ios={"sound": False, "badge": "x"}), None),
    (android(click_action=8), "msgStyle.android.click_action must be an integer from 0 to 7"),
    (android(click_action=-1), "msgStyle.android.click_action must be an integer from 0 to 7"),
    (android(click_action="2"), "msgStyle.android.click_action must be an integer"),
    (android(click_action=0), None),
    (click(0, [[]]), None),
    (click(1, 12), None),
    (click(2, "http://u"), None),
    (click(3, "intent:#Intent;end"), None),
    (android(click_action=2), f"{PARAM} is missing: click_action 2 needs it"),
    (android(click_action=4), f"{PARAM} is missing: click_action 4 needs it"),
    (click(2, ""), f"{PARAM} must not be empty"),
    (click(3, {"intent": "x"}), f"{PARAM} must be a string"),
    (click(4, "http://u"), f"{PARAM} must be an object"),
    (click(7, {"url": "http://u"}), None),
    (click(7, {}), f"{PARAM}.url is missing"),
    # landing page
    (landing(), None),
    (click(4, {"picture_addr": "http://p"}), None),
    (click(4, {"jump-button": 1}), f"{PARAM}.picture-addr is missing"),
    (landing(**{"picture-addr": 7}), f"{PARAM}.picture-addr must be a string"),
    (landing(**{"picture-hyperlink": "h", "jump-button": 1, "jump-seconds": 1, "download-condition": 1}), None),
    (landing(**{"jump-button": 2}), f"{PARAM}.jump-button must not be 2"),
    (landing(**{"jump-seconds": 60}), None),
    (landing(**{"jump-seconds": 61}), f"{PARAM}.jump-seconds must be an integer from 1 to 60"),
    (landing(**{"jump-seconds": 0}), f"{PARAM}.jump-seconds must be an integer from 1 to 60"),
    (landing(**{"tip-content": "一二三四五六七八九十", "tip-url": "u"}), None),
    (
        landing(**{"tip-content": "一二三四五六七八九十x", "tip-url": "u"}),
        f"{PARAM}.tip-content must have at most 10",
    ),
    (landing(**{"tip-content": "😀" * 10, "tip-url": "u"}), None),
    (landing(**{"tip-content": "tip"}), f"{PARAM}.tip-url is missing: tip-content needs it"),
    (landing(**{"tip-content": None, "tip-url": None}), None),
    (landing(**{"download-condition": 2}), f"{PARAM}.download-condition must not be 2"),
    # pop-up
    (pop_up(1), None),
    (pop_up(2), f"{PARAM}.title is missing: popup-mode 2 needs it"),
    (pop_up(2, title="题" * 15), None),
    (pop_up(2, title="题" * 16), f"{PARAM}.title must have at most 15 characters"),
    (pop_up(3), f"{PARAM}.popup-mode must not be 3"),
    (click(5, {"picture-addr": "p"}), f"{PARAM}.popup-mode is missing"),
    (click(5, {"popup-mode": 1}), f"{PARAM}.picture-addr is missing"),
    (pop_up(1, **{"tip-content": "x" * 11}), f"{PARAM}.tip-content must have at most 10 characters"),
    (pop_up(1, **{"download-condition": "0"}), f"{PARAM}.download-condition must be an integer"),
    # information flow
    (flow(2, 2, title="t"), None),
    (flow(2, 7, title="题" * 15), None),
    (flow(2, 1), f"{PARAM}.information must have at least 2 entries"),
    (flow(2, 8), f"{PARAM}.information must have at most 7 entries"),
    (flow(2, 2, title="题" * 16), f"{PARAM}.information[0].title must have at most 15 characters"),
    (flow(2, 2, top="题" * 16), f"{PARAM}.top-title must have at most 15 characters"),
    (flow(1, 2, **{"text-abstract": "摘" * 100}), None),
    (flow(1, 2, **{"text-abstract": "摘" * 101}), f"{PARAM}.information[0].text-abstract must have at most 100 char"),
    (flow(1, 2), f"{PARAM}.information[0].text-abstract is missing: flow-mode 1 needs it"),
    (flow(0, 2), f"{PARAM}.flow-mode must not be 0"),
    (click(6, {"information": [{}, {}]}), f"{PARAM}.flow-mode is missing"),
    (click(6, {"flow-mode": 2}), f"{PARAM}.information is missing"),
    # ios
    (ios(sound="bell.caf", badge=-1, category="c", **{"content-available": 1}), None),
    (ios(sound=False), "msgStyle.ios.sound must be a string"),
    (ios(badge=-2), "msgStyle.ios.badge must be an integer from -1 to 2147483647"),
    (ios(category=1), "msgStyle.ios.category must be a string"),
    (ios(**{"content-available": 2}), "msgStyle.ios.content-available must not be 2"),
    (ios(**{"content-available": True}), "msgStyle.ios.content-available must be an integer"),
    (request(sendTo__userScope=2, sendTo__appkey={"ios": IOS}, msgStyle__android={"badge": "x"}), None),
    # option
    (timed(period=0), None),
    (timed(period=1), None),
    (timed(period=604_800), None),
    (timed(period=604_801), "option.period must be an integer from 0 to 604800"),
    (timed(period=-1), "option.period must be an integer from 0 to 604800"),
    (timed(period="60"), "option.period must be an integer"),
    (timed(qps=2**32 - 1), None),
    (timed(qps=-1), "option.qps must be an integer from 0 to 4294967295"),
    (timed(timed=0, send_time=7, send_time_interval="x"), None),
    (timed(timed=3), "option.timed must not be 3"),
    (timed(timed=1), "option.send_time is missing: option.timed 1 needs it"),
    (timed(timed=1, send_time=20300101), "option.send_time must be a string"),
    (timed(timed=1, send_time="2026-09-30"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="2026-09-30 10:00:00"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="2026-02-30 10:00"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="2026-9-3 1:00"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="٢٠٢٦-09-30 10:00"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="0001-01-01 00:00"), "option.send_time must"),
    (timed(timed=1, send_time="9999-12-31 23:59"), "option.send_time must lie in the future, within 365 days"),
    (timed(timed=1, send_time=minutes_from_now(0)), "option.send_time must lie in the future, within 365 days"),
    (timed(timed=1, send_time=minutes_from_now(1)), None),
    (timed(timed=1, send_time=minutes_from_now(365 * 1440)), None),
    (timed(timed=1, send_time=minutes_from_now(365 * 1440 + 1)), "option.send_time must lie in the future, within"),
    (timed(timed=2), "option.send_time_interval is missing: option.timed 2 needs it"),
    (timed(timed=2, send_time_interval="5"), "option.send_time_interval must be an integer"),
    (timed(timed=2, send_time_interval=0), "option.send_time_interval must be an integer from 1 to 31536000"),
    (timed(timed=2, send_time_interval=1), None),
    (timed(timed=2, send_time_interval=365 * DAY_S), None),
    (timed(timed=2, send_time_interval=365 * DAY_S + 1), "option.send_time_interval must be an integer from 1 to"),
]


@pytest.mark.parametrize(("body", "problem"), ROWS)
def test_rule(body: dict[str, Any], problem: str | None) -> None:
    if problem is None:
        assert read(body).pushes
        return
    with pytest.raises(InputError) as refusal:
        read(body)
    assert str(refusal.value).startswith(problem)


async def test_every_rule_is_answered_through_http(installation: EdgeInstallation) -> None:
    """The same rows at the real door, with the appkeys of apps that exist."""
    android_app = await installation.app()
    first, second = await installation.app(PLATFORM_IOS), await installation.app(PLATFORM_IOS)
    names = {ANDROID: android_app.appkey, IOS: first.appkey, IOS_2: second.appkey}
    for body, problem in ROWS:
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
    """The appkeys that exist in the request, as it lists them."""
    send_to = body.get("sendTo")
    appkeys = send_to.get("appkey") if isinstance(send_to, dict) else None
    if not isinstance(appkeys, dict):
        return [names[ANDROID]]
    listed = appkeys.get("ios", [])
    keys = [appkeys.get("android"), *(listed if isinstance(listed, list) else [listed])]
    return [str(key) for key in keys if str(key) in names.values()]
