"""The rules of msgStyle and option in POST /v2/push, one row each: at the limit and one past it. `None`: accepted."""

from typing import Any

import pytest

from testkit.edge.push_rules import (
    GONE,
    IOS,
    Row,
    android,
    both,
    check_rule,
    check_rules_through_http,
    click,
    flow,
    ios,
    landing,
    minutes_from_now,
    pop_up,
    request,
    timed,
)
from testkit.edge.role import EdgeInstallation

DAY_S = 86_400


def badge_only(**changes: Any) -> dict[str, Any]:
    """A notification for iOS with an empty content and a badge."""
    return request(
        **{
            "sendTo__userScope": 2,
            "sendTo__appkey": {"ios": IOS},
            "msgStyle__basic__content": "",
            "msgStyle__ios": {"badge": 5},
            **changes,
        }
    )


PARAM = "msgStyle.android.click_param"
NULLS = dict.fromkeys(("title", "picture-addr", "text-abstract", "text-detail"))

ROWS: list[Row] = [
    # basic
    (request(msgStyle__basic=GONE), "msgStyle.basic is missing"),
    (request(msgStyle__basic__content=GONE), "msgStyle.basic.content is missing"),
    (request(msgStyle__basic__content=7), "msgStyle.basic.content must be a string or an object"),
    (request(msgStyle__basic__content=""), "msgStyle.basic.content must not be empty"),
    (request(msgStyle__basic__is_notif=GONE), "msgStyle.basic.is_notif is missing"),
    (request(msgStyle__basic__is_notif=0), None),
    (request(msgStyle__basic__is_notif=2), "msgStyle.basic.is_notif must be an integer from 0 to 1"),
    (request(msgStyle__basic__is_notif="1"), None),
    (request(msgStyle__basic__is_notif="2"), "msgStyle.basic.is_notif must be an integer from 0 to 1"),
    (request(msgStyle__basic__is_notif=True), "msgStyle.basic.is_notif must be an integer or an object"),
    (both(msgStyle__basic={"content": {"android": "a", "ios": "i"}, "is_notif": {"android": 1, "ios": 0}}), None),
    (both(msgStyle__basic__content={"android": "a"}), "msgStyle.basic.content.ios is missing"),
    (both(msgStyle__basic__is_notif={"ios": 1}), "msgStyle.basic.is_notif.android is missing"),
    (
        both(msgStyle__basic__is_notif={"android": 1, "ios": 3}),
        "msgStyle.basic.is_notif.ios must be an integer from 0 to 1",
    ),
    (both(msgStyle__basic__is_notif={"android": "1", "ios": "0"}), None),
    (request(msgStyle__basic__content={"android": "a"}), None),
    # a pass-through message has no style
    (request(msgStyle__basic__is_notif=0, msgStyle__android={"sound": "?", "click_action": 9, "badge": []}), None),
    (request(msgStyle__basic__is_notif="0", msgStyle__android="x", msgStyle__ios=7), None),
    (both(msgStyle__basic__is_notif={"android": 0, "ios": 1}, msgStyle__android=[]), None),
    (both(msgStyle__basic__is_notif={"android": 0, "ios": 1}, msgStyle__ios=[]), None),
    (both(msgStyle__basic__is_notif={"android": 1, "ios": 0}, msgStyle__ios={"sound": 1}), None),
    # a badge alone
    (badge_only(), None),
    (badge_only(msgStyle__basic__content={"ios": ""}), None),
    (badge_only(msgStyle__basic__is_notif=0), "msgStyle.basic.content must not be empty"),
    (badge_only(msgStyle__ios={"sound": "x"}), "msgStyle.basic.content must not be empty, unless a notification for"),
    (
        both(msgStyle__basic__content={"android": "", "ios": ""}, msgStyle__ios={"badge": 1}),
        "msgStyle.basic.content.android must not be empty",
    ),
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
    (android(click_action="2"), f"{PARAM} is missing: click_action 2 needs it"),
    (click("2", "http://u"), None),
    (android(badge="-1"), None),
    (android(click_action=0), None),
    (click(0, [[]]), None),
    (click(1, 12), None),
    (click(2, "http://u"), None),
    (click(3, "intent:#Intent;end"), None),
    (android(click_action=2), f"{PARAM} is missing: click_action 2 needs it"),
    (android(click_action=4), f"{PARAM} is missing: click_action 4 needs it"),
    (android(click_action=None, click_param=None), None),
    (click(2, None), f"{PARAM} is missing: click_action 2 needs it"),
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
    (landing(**{"jump-button": 2}), f"{PARAM}.jump-button must be an integer from 0 to 1"),
    (landing(**{"jump-seconds": 60}), None),
    (landing(**{"jump-seconds": "60", "jump-button": "1", "download-condition": "0"}), None),
    (landing(**{"jump-seconds": "61"}), f"{PARAM}.jump-seconds must be an integer from 1 to 60"),
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
    (landing(**dict.fromkeys(("picture-hyperlink", "jump-button", "jump-seconds", "download-condition"))), None),
    (landing(**{"picture-addr": None}), f"{PARAM}.picture-addr must be a string"),
    (landing(**{"download-condition": 2}), f"{PARAM}.download-condition must be an integer from 0 to 1"),
    # pop-up
    (pop_up(1), None),
    (pop_up(2), f"{PARAM}.title is missing: popup-mode 2 needs it"),
    (pop_up(2, title="题" * 15), None),
    (pop_up(2, title="题" * 16), f"{PARAM}.title must have at most 15 characters"),
    (pop_up(3), f"{PARAM}.popup-mode must not be 3"),
    (click(5, {"picture-addr": "p"}), f"{PARAM}.popup-mode is missing"),
    (click(5, {"popup-mode": 1}), f"{PARAM}.picture-addr is missing"),
    (pop_up(1, **{"tip-content": "x" * 11}), f"{PARAM}.tip-content must have at most 10 characters"),
    (pop_up("1", **{"download-condition": "0"}), None),
    (pop_up(1, **dict.fromkeys(("title", "picture-hyperlink", "tip-content", "tip-url", "download-condition"))), None),
    # information flow
    (click(6, {"flow-mode": 2, "top-title": None, "download-condition": None, "information": [{}, NULLS]}), None),
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
    (ios(**{"content-available": 2}), "msgStyle.ios.content-available must be an integer from 0 to 1"),
    (ios(**{"content-available": True}), "msgStyle.ios.content-available must be an integer"),
    (request(sendTo__userScope=2, sendTo__appkey={"ios": IOS}, msgStyle__android={"badge": "x"}), None),
    # option
    (timed(period=0), "option.period must be an integer from 1 to 2592000"),
    (timed(period="0"), "option.period must be an integer from 1 to 2592000"),
    (timed(period=1), None),
    (timed(period=30 * DAY_S), None),
    (timed(period=30 * DAY_S + 1), "option.period must be an integer from 1 to 2592000"),
    (timed(period=10**30), "option.period must be an integer from 1 to 2592000"),
    (timed(period=-1), "option.period must be an integer from 1 to 2592000"),
    (timed(period="60"), None),
    (timed(qps=2**32 - 1), None),
    (timed(channel={}), None),
    (timed(channel={"route": "own", "importance": None, "later": 1}), None),
    (timed(label="spring 春"), None),
    (timed(label=None), None),
    (timed(label="x" * 65), "option.label must"),
    (timed(label="a\nb"), "option.label must"),
    (timed(channel={"route": "fcm"}), "option.channel.route must not be"),
    (timed(channel={"importance": 3}), "option.channel.importance must be a string"),
    (timed(channel={"category": "im"}), "option.channel.category: write a word in capital letters"),
    (timed(channel={"category": "I" * 41}), "option.channel.category must have"),
    (timed(channel={"category": "SOME_NEW_KIND"}), None),
    (timed(channel="own"), "option.channel must be an object"),
    (timed(qps=-1), "option.qps must be an integer from 0 to 4294967295"),
    (timed(timed=0, send_time=7, send_time_interval="x"), None),
    (timed(timed=3), "option.timed must not be 3"),
    (timed(timed=1), "option.send_time is missing: option.timed 1 needs it"),
    (timed(timed=1, send_time=20300101), "option.send_time must be a string"),
    (timed(timed=1, send_time="2026-09-30"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="2026-09-30 10:00:00"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="2026-02-30 10:00"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="2026-9-3 1:00"), "option.send_time must lie in the future"),
    (timed(timed=1, send_time="26-09-30 10:00"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="٢٠٢٦-09-30 10:00"), "option.send_time must be a time like"),
    (timed(timed=1, send_time="0001-01-01 00:00"), "option.send_time must"),
    (timed(timed=1, send_time="9999-12-31 23:59"), "option.send_time must lie in the future, within 365 days"),
    (timed(timed=1, send_time=minutes_from_now(0)), "option.send_time must lie in the future, within 365 days"),
    (timed(timed=1, send_time=minutes_from_now(1)), None),
    (timed(timed=1, send_time=minutes_from_now(365 * 1440)), None),
    (timed(timed=1, send_time=minutes_from_now(365 * 1440 + 1)), "option.send_time must lie in the future, within"),
    (timed(timed=2), "option.send_time_interval is missing: option.timed 2 needs it"),
    (timed(timed="2", send_time_interval="5"), None),
    (timed(timed="null", send_time_interval="5"), "option.timed must be an integer"),
    (timed(timed=2, send_time_interval=0), "option.send_time_interval must be an integer from 1 to 31536000"),
    (timed(timed=2, send_time_interval=1), None),
    (timed(timed=2, send_time_interval=365 * DAY_S), None),
    (timed(timed=2, send_time_interval=365 * DAY_S + 1), "option.send_time_interval must be an integer from 1 to"),
]


@pytest.mark.parametrize(("body", "problem"), ROWS)
def test_rule(body: dict[str, Any], problem: str | None) -> None:
    check_rule(body, problem)


async def test_every_rule_is_answered_through_http(installation: EdgeInstallation) -> None:
    await check_rules_through_http(installation, ROWS)
