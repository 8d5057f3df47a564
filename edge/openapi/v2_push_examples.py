"""Requests of POST /v2/push for the v2 door's document. Together they show every field."""

from typing import Any

ANDROID, IOS, SECOND_IOS = "1234567890", "1987654321", "1987654322"
ANDROID_TOKEN = "3e1f0cd9e1b84c0fa2a19c1de1d0a3b7"  # noqa: S105
IOS_TOKEN = "a9d0ed10e9cfd022a61cb08753f49c5a0b0dfb383697bf9f9d750a1003da19c7"  # noqa: S105
SIGN = "0123456789abcdef0123456789abcdef"
SEND_TIME = "2027-01-31 18:05"


def _push(send_to: dict[str, Any], android: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    basic = {"content": "Your order is on its way", "is_notif": 1}
    style = {"basic": basic} if android is None else {"basic": basic, "android": android}
    return {"sendTo": send_to, "msgStyle": style, **more, "sign": SIGN}


def _click(action: int, param: Any) -> dict[str, Any]:
    return _push({"appkey": {"android": ANDROID}, "userScope": 1}, {"click_action": action, "click_param": param})


_ANDROID_APP = {"android": ANDROID}
EXAMPLES: dict[str, Any] = {
    "everyone": {
        "sendTo": {"appkey": {"android": ANDROID, "ios": IOS}, "userScope": 0},
        "msgStyle": {
            "basic": {
                "content": {"android": "Hello Android", "ios": "Hello iOS"},
                "is_notif": {"android": 1, "ios": 1},
            },
            "android": {
                "title": "News",
                "sound": True,
                "vibrate": True,
                "unremovable": True,
                "badge": -1,
                "click_action": 2,
                "click_param": "https://example.org/news",
            },
            "ios": {"sound": "chime.caf", "badge": 3, "content-available": 1, "category": "NEWS"},
        },
        "option": {"period": 86400, "qps": 500, "timed": 0},
        "extra": "campaign-7",
        "sign": SIGN,
    },
    "tags, at a time": _push(
        {"appkey": _ANDROID_APP, "userScope": 6, "tag": [[1, 2], [30]], "not_tag": [[99]]},
        option={"timed": 1, "send_time": SEND_TIME},
    ),
    "string tags, in an hour": _push(
        {"appkey": _ANDROID_APP, "userScope": 6, "stag": [["sports", "vip"], ["news"]], "not_stag": [["quiet"]]},
        option={"timed": 2, "send_time_interval": 3600},
    ),
    "an alias": _push({"appkey": _ANDROID_APP, "userScope": 3, "alias": "alice"}),
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
                "android": {
                    "locate": ["北京市", "上海市"],
                    "osversion": ["14", "15"],
                    "appversion": ["2.1"],
                    "channel": ["store"],
                    "phone": ["brand"],
                    "operator": ["cm"],
                    "model": {"brand": ["one", "two"]},
                    "activity_1": {">=": 1},
                    "activity_7": {">": 2, "<": 50},
                    "activity_30": {"<=": 100},
                    "activity_90": {"=": 60},
                }
            },
        }
    ),
    "tags and all but some devices": _push(
        {
            "appkey": _ANDROID_APP,
            "userScope": 8,
            "tag": [[7]],
            "optfilter": {
                "android": {
                    "locate_not": ["西藏自治区"],
                    "osversion_not": ["9"],
                    "appversion_not": ["1.0"],
                    "channel_not": ["test"],
                    "phone_not": ["other"],
                    "operator_not": ["ct"],
                    "model_not": [{"brand": "old"}],
                }
            },
        }
    ),
    "landing page": _click(
        4,
        {
            "picture-addr": "https://example.org/p.png",
            "picture-hyperlink": "https://example.org/",
            "jump-button": 1,
            "jump-seconds": 5,
            "tip-content": "More",
            "tip-url": "https://example.org/tip",
            "download-condition": 1,
        },
    ),
    "pop-up": _click(
        5,
        {
            "popup-mode": 2,
            "title": "Sale",
            "picture-addr": "https://example.org/p.png",
            "picture-hyperlink": "https://example.org/",
            "tip-content": "More",
            "tip-url": "https://example.org/tip",
            "download-condition": 0,
        },
    ),
    "information flow": _click(
        6,
        {
            "flow-mode": 1,
            "top-title": "Today",
            "download-condition": 1,
            "information": [
                {
                    "title": "One",
                    "picture-addr": "https://example.org/1.png",
                    "text-abstract": "In short",
                    "text-detail": "At length",
                },
                {"title": "Two", "text-abstract": "In short"},
            ],
        },
    ),
    "rich media": _click(7, {"url": "https://example.org/rich"}),
}
