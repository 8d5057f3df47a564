"""Example requests of the v2 interface. Together they show every property of every request."""

from typing import Any

import msgspec

from edge.core.parsing.targets import DeviceFilter, PositiveOptions
from edge.openapi.schema import Json, example_of
from edge.v2.push.requests import ChannelOption, Option, PushRequest
from edge.v2.push.style import Android, Article, InformationFlow, Ios, LandingPage, PopUp, RichMedia
from edge.v2.tasks import TaskListRequest

ANDROID, IOS, SECOND_IOS = "1234567890", "1987654321", "1987654322"
ANDROID_TOKEN = "3e1f0cd9e1b84c0fa2a19c1de1d0a3b7"  # noqa: S105
IOS_TOKEN = "a9d0ed10e9cfd022a61cb08753f49c5a0b0dfb383697bf9f9d750a1003da19c7"  # noqa: S105
SIGN = "0123456789abcdef0123456789abcdef"
SEND_TIME = "2027-01-31 18:05"
TASK_KEY = "f3c2a7d09be84d2c8d6a1b0e5c4f7a98"
_ANDROID_APP = {"android": ANDROID}


def _push(send_to: Json, android: Json | None = None, **more: Any) -> Json:
    basic = {"content": "Your order is on its way", "is_notif": 1}
    style = {"basic": basic} if android is None else {"basic": basic, "android": android}
    return {"sendTo": send_to, "msgStyle": style, **more, "sign": SIGN}


def _click(action: int, param: type[msgspec.Struct], **more: Any) -> Json:
    style = {"click_action": action, "click_param": example_of(param, **more)}
    return _push({"appkey": _ANDROID_APP, "userScope": 1}, style)


PUSHES: dict[str, Json] = {
    "everyone": example_of(
        PushRequest,
        sendTo={"appkey": {"android": ANDROID, "ios": IOS}, "userScope": 0},
        msgStyle={
            "basic": {
                "content": {"android": "Hello Android", "ios": "Hello iOS"},
                "is_notif": {"android": 1, "ios": 1},
            },
            "android": example_of(Android),
            "ios": example_of(Ios),
        },
        option=example_of(Option),
        sign=SIGN,
    ),
    "tags, at a time": _push(
        {"appkey": _ANDROID_APP, "userScope": 6, "tag": [[1, 2], [30]], "not_tag": [[99]]},
        option={"timed": 1, "send_time": SEND_TIME},
    ),
    "string tags, in an hour": _push(
        {"appkey": _ANDROID_APP, "userScope": 6, "stag": [["sports", "vip"], ["news"]], "not_stag": [["quiet"]]},
        option={"timed": 2, "send_time_interval": 3600},
    ),
    "an alias, by a channel first": _push(
        {"appkey": _ANDROID_APP, "userScope": 3, "alias": "alice"},
        option={"channel": example_of(ChannelOption, route="vendor")},
    ),
    "aliases": _push({"appkey": _ANDROID_APP, "userScope": 4, "alias": ["alice", "bob"]}),
    "tokens": _push(
        {
            "appkey": {"android": ANDROID, "ios": IOS},
            "userScope": 5,
            "token": {"android": [ANDROID_TOKEN], "ios": IOS_TOKEN},
        }
    ),
    "several iOS apps": _push(
        {
            "appkey": {"ios": [IOS, SECOND_IOS]},
            "userScope": 5,
            "token": {"ios": {IOS: [IOS_TOKEN], SECOND_IOS: IOS_TOKEN}},
        }
    ),
    "device attributes": _push(
        {
            "appkey": _ANDROID_APP,
            "userScope": 7,
            "optfilter": {
                "android": example_of(
                    PositiveOptions,
                    locate=["北京市", "上海市"],
                    osversion=["14", "15"],
                    model={"brand": ["one", "two"]},
                )
            },
        }
    ),
    "tags and all but some devices": _push(
        {
            "appkey": _ANDROID_APP,
            "userScope": 8,
            "tag": [[7]],
            "optfilter": {
                "android": {name: value for name, value in example_of(DeviceFilter).items() if name.endswith("_not")}
            },
        }
    ),
    "landing page": _click(4, LandingPage),
    "pop-up": _click(5, PopUp),
    "information flow": _click(
        6, InformationFlow, information=[example_of(Article), {"title": "Two", "text-abstract": "In short"}]
    ),
    "rich media": _click(7, RichMedia),
}
TASK_PAGES = {"newest first": example_of(TaskListRequest, appkey=_ANDROID_APP, sign=SIGN)}
TASKS = {"a task": {"appkey": {"android": ANDROID, "ios": IOS}, "task_key": TASK_KEY, "sign": SIGN}}

_TAGS = {"appkey": ANDROID, "action": "stag", "sign": SIGN}
_TAGS_OF_TWO = {**_TAGS, "appkey": [ANDROID, IOS]}
TAG_CHANGES: dict[str, Json] = {
    "one app": {**_TAGS, "params": {ANDROID_TOKEN: ["news", "vip"]}},
    "several apps": {
        **_TAGS_OF_TWO,
        "params": {ANDROID: {ANDROID_TOKEN: ["news"]}, IOS: {IOS_TOKEN: ["news"]}},
    },
    "param": {**_TAGS, "param": {ANDROID_TOKEN: ["vip"]}},
}
TAG_QUERIES: dict[str, Json] = {
    "one app": {**_TAGS, "params": [ANDROID_TOKEN]},
    "several apps": {**_TAGS_OF_TWO, "params": {ANDROID: [ANDROID_TOKEN], IOS: [IOS_TOKEN]}},
    "param": {**_TAGS, "param": [ANDROID_TOKEN]},
}
INVALID_TOKENS: dict[str, Json] = {
    "one app": {"appkey": IOS, "sign": SIGN},
    "several apps": {"appkey": [IOS, SECOND_IOS], "sign": SIGN},
}


def _statistics(kind: int, param: Json) -> Json:
    return {"appkey": ANDROID, "type": kind, "param": param, "sign": SIGN}


STATISTICS: dict[str, Json] = {
    "connections of today by region": _statistics(0, {"category": 1, "Info": "all", "dur": {"timeScope": 0}}),
    "all broadcasts": _statistics(1, {"msgid": -1}),
    "new users of some days": _statistics(
        2, {"usertype": 0, "dur": {"timeScope": 3, "from": "2026-01-01", "to": "2026-01-31"}}
    ),
    "logins of a carrier": _statistics(3, {"category": 2, "info": "cm", "dur": {"timeScope": 2}}),
}
