"""Every rule of POST /push, POST /timed_msg and the other Android requests, one row each: at its limit and past it.

`None` stands for accepted. Each row goes through the real interface.
"""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from edge.core.parsing.regions import REGIONS
from protos.registry.v1.apps_pb2 import App
from testkit.edge.legacy_client import GONE, LegacyClient, Row, check
from testkit.edge.role import NOW_MS, ZONE, EdgeInstallation

NAME_40 = "世" * 13 + "a"
REGION = sorted(REGIONS)[0]
WRONG_BOOLEANS: tuple[Any, ...] = ("true", 1, [])


def optfilter_of(size: int) -> dict[str, list[str]]:
    """Return a filter of this many bytes as compact JSON, with characters of three bytes in it."""
    empty = len('{"phone":["世"]}'.encode())
    return {"phone": ["世" + "a" * (size - empty)]}


def notif(**fields: Any) -> dict[str, Any]:
    return {"is_notif": 1, **fields}


def minutes_from_now(minutes: int) -> str:
    """Format a minute counted from the start of the minute of NOW_MS."""
    return datetime.fromtimestamp(NOW_MS // 60_000 * 60 + minutes * 60, ZoneInfo(ZONE)).strftime("%Y-%m-%d %H:%M")


MISSPELT = [
    *((key, "token") for key in ("tokens", "Token", "TOKENS", "tokn", "tokenn")),
    *((key, "alias") for key in ("aliases", "Alias", "aliass", "alia")),
    *((key, "filter") for key in ("filters", "Filter", "filte")),
    *((key, "filter_v2") for key in ("filterv2", "filter_v3", "filter_V2", "filter-v2")),
    *((key, "optfilter") for key in ("optFilter", "opt_filter", "optfilters")),
]
MESSAGE: list[Row] = [
    ({}, None),
    ({"message": GONE}, "message is missing"),
    ({"message": None}, "message must be a string"),
    ({"message": ""}, "message must not be empty"),
    ({"message": 5}, "message must be a string"),
    ({"message": {"a": 1}}, "message must be a string"),
    ({"message": "m" * 4096}, None),
    ({"message": "m" * 4097}, "message must have at most 4096 bytes"),
    ({"message": "世" * 1365 + "a"}, None),
    ({"message": "世" * 1366}, "message must have at most 4096 bytes"),
    ({"is_notif": 0}, None),
    ({"is_notif": 1}, None),
    ({"is_notif": "0"}, None),
    ({"is_notif": "1"}, None),
    ({"is_notif": None}, None),
    ({"is_notif": 2}, "is_notif must be an integer from 0 to 1"),
    ({"is_notif": "2"}, "is_notif must be an integer from 0 to 1"),
    ({"is_notif": -1}, "is_notif must be an integer from 0 to 1"),
    ({"is_notif": ""}, "is_notif must be an integer"),
    ({"is_notif": "one"}, "is_notif must be an integer"),
    ({"is_notif": "٣"}, "is_notif must be an integer"),
    ({"is_notif": True}, "is_notif must be an integer or a string"),
    ({"is_notif": 1.0}, "is_notif must be an integer or a string"),
    ({"is_notif": [1]}, "is_notif must be an integer or a string"),
    ({"period": 60}, None),
    ({"period": "60"}, None),
    ({"period": 59}, "period must be an integer from 60 to 604800"),
    ({"period": "59"}, "period must be an integer from 60 to 604800"),
    ({"period": 0}, "period must be an integer from 60 to 604800"),
    ({"period": 604_800}, None),
    ({"period": "604800"}, None),
    ({"period": 604_801}, "period must be an integer from 60 to 604800"),
    ({"period": "99999999999999999999"}, "period must be an integer from 60 to 604800"),
    ({"period": 10**40}, "period must be an integer from 60 to 604800"),
    ({"period": "1e3"}, "period must be an integer"),
    ({"period": {}}, "period must be an integer or a string"),
    ({"qps": 0}, None),
    ({"qps": "100"}, None),
    ({"qps": 2**32 - 1}, None),
    ({"qps": 2**32}, "qps must be an integer from 0 to 4294967295"),
    ({"qps": -1}, "qps must be an integer from 0 to 4294967295"),
    ({"qps": "-1"}, "qps must be an integer from 0 to 4294967295"),
    ({"qps": "fast"}, "qps must be an integer"),
    ({"extra": "free"}, None),
    ({"extra": {"a": 1}}, "extra must be a string"),
]

TARGETS: list[Row] = [
    ({"filter": [1]}, None),
    ({"filter": [1, "2", -3, "-4"]}, None),
    ({"filter": [-32767, 32767]}, None),
    ({"filter": [-32768]}, "filter[0] must be an integer from -32767 to 32767"),
    ({"filter": [1, 32768]}, "filter[1] must be an integer from -32767 to 32767"),
    ({"filter": ["32768"]}, "filter[0] must be an integer from -32767 to 32767"),
    ({"filter": ["x"]}, "filter[0] must be an integer"),
    ({"filter": []}, "filter must not be empty"),
    ({"filter": [[1]]}, "filter[0] must be an integer or a string"),
    ({"filter": [1.5]}, "filter[0] must be an integer or a string"),
    ({"filter": 5}, "filter must be a list"),
    *(({name: None}, f"{name} must not be null") for name in ("filter", "filter_v2", "optfilter", "token", "alias")),
    ({"token": "t", "alias": None}, "alias must not be null"),
    ({"filter": [1], "optfilter": None}, "optfilter must not be null"),
    *(({key: value}, f"{key} is not known; the field is {meant}") for key, meant in MISSPELT for value in ("x", None)),
    (dict.fromkeys(("tag", "stag", "title_", "filtering", "tokenizer", "aka", "aliasing", "filter_by", "x"), 1), None),
    ({"filter": [1] * 100}, None),
    ({"filter": [1] * 101}, "filter must have at most 100 entries"),
    ({"filter_v2": [[1]] * 1000}, None),
    ({"filter_v2": [[1]] * 1001}, "filter_v2 must have at most 1000 entries"),
    ({"filter_v2": [[1], [2] * 101]}, "filter_v2[1] must have at most 100 entries"),
    ({"filter_v2": [[1] * 100] * 100}, None),
    (
        {"filter_v2": [[1] * 100] * 100, "optfilter": {"phone": ["p"]}},
        "filter_v2: the filter has 10001 tags and values in all, but at most 10000",
    ),
    ({"filter_v2": [[1, 2], ["3"]]}, None),
    ({"filter_v2": [[-32767, 32767]]}, None),
    ({"filter_v2": [[1], [32768]]}, "filter_v2[1][0] must be an integer from -32767 to 32767"),
    ({"filter_v2": [[1], [0, "-32768"]]}, "filter_v2[1][1] must be an integer from -32767 to 32767"),
    ({"filter_v2": []}, "filter_v2 must not be empty"),
    ({"filter_v2": [[]]}, "filter_v2[0] must not be empty"),
    ({"filter_v2": [1, 2]}, "filter_v2[0] must be a list"),
    ({"filter_v2": "x"}, "filter_v2 must be a list"),
    ({"filter": [1], "filter_v2": [[1]]}, "filter and filter_v2 cannot both be given"),
    ({"filter": [1], "optfilter": {"phone": ["x"]}}, None),
    ({"filter_v2": [[1]], "optfilter": {"phone": ["x"]}}, None),
    ({"token": "t"}, None),
    ({"token": ["t"] * 1000}, None),
    ({"token": ["t"] * 1001}, "token must have at most 1000 entries"),
    ({"token": []}, "token must not be empty"),
    ({"token": ""}, "token must not be empty"),
    ({"token": ["t", ""]}, "token[1] must not be empty"),
    ({"token": ["t", 5]}, "token[1] must be a string"),
    ({"token": 5}, "token must be a string or a list"),
    ({"token": {"a": 1}}, "token must be a string or a list"),
    ({"alias": "a"}, None),
    ({"alias": NAME_40}, None),
    ({"alias": NAME_40 + "a"}, "alias must have 1 to 40 bytes"),
    ({"alias": ["a", NAME_40]}, None),
    ({"alias": ["a", NAME_40 + "a"]}, "alias[1] must have 1 to 40 bytes"),
    ({"alias": [f"a{n}" for n in range(1000)]}, None),
    ({"alias": [f"a{n}" for n in range(1001)]}, "alias must have at most 1000 entries"),
    ({"alias": []}, "alias must not be empty"),
    ({"alias": ""}, "alias must not be empty"),
    ({"alias": [None]}, "alias[0] must be a string"),
    ({"alias": True}, "alias must be a string or a list"),
    ({"alias": "a", "alias_send_all": 0}, None),
    ({"alias": "a", "alias_send_all": "1"}, None),
    ({"alias": "a", "alias_send_all": 2}, "alias_send_all must be an integer from 0 to 1"),
    ({"alias": "a", "alias_send_all": "all"}, "alias_send_all must be an integer"),
    ({"alias": "a", "alias_send_all": False}, "alias_send_all must be an integer or a string"),
    ({"token": "t", "alias": "a"}, None),
    *(
        ({name: "x", **selected}, "token or alias cannot be combined with a filter")
        for name in ("token", "alias")
        for selected in ({"filter": [1]}, {"filter_v2": [[1]]}, {"optfilter": {"phone": ["x"]}})
    ),
]

OPTFILTER: list[Row] = [
    *(({"optfilter": {name: ["x"]}}, None) for name in ("osversion", "appversion", "channel", "phone", "operator")),
    ({"optfilter": {"locate": [REGION]}}, None),
    ({"optfilter": {"locate": ["Atlantis"]}}, "optfilter.locate[0] is not a known region"),
    *(
        ({"optfilter": {f"activity_{days}": {comparison: 3}}}, None)
        for days in (1, 7, 30, 90)
        for comparison in (">", "<", ">=", "<=", "=")
    ),
    ({"optfilter": {"activity_7": {"!=": 3}}}, "optfilter.activity_7 must compare with one of"),
    ({"optfilter": {"activity_7": {">": "3"}}}, "optfilter.activity_7[...] must be an integer"),
    ({"optfilter": {"activity_7": {">": 10**30}}}, "optfilter.activity_7[...] must be an integer from 0 to"),
    ({"optfilter": {"activity_2": {">": 3}}}, "optfilter.activity_2 is not known"),
    *(
        ({"optfilter": {f"{name}_not": ["x"]}}, f"optfilter.{name}_not is not known")
        for name in ("locate", "osversion", "appversion", "channel", "phone", "operator")
    ),
    ({"optfilter": {"phone": ["b"], "model": [{"b": "m"}]}}, "optfilter.model is not known"),
    ({"optfilter": {"model_not": [{"b": "m"}]}}, "optfilter.model_not is not known"),
    ({"optfilter": {}}, "optfilter must name at least one option"),
    ({"optfilter": {"phone": []}}, "optfilter.phone must not be empty"),
    ({"optfilter": {"phone": "x"}}, "optfilter.phone must be a list"),
    ({"optfilter": {"phone": [5]}}, "optfilter.phone[0] must be a string"),
    ({"optfilter": []}, "optfilter must be an object"),
    ({"optfilter": "x"}, "optfilter must be an object"),
    ({"optfilter": optfilter_of(2000)}, None),
    ({"optfilter": optfilter_of(2001)}, "optfilter must have at most 2000 bytes"),
]

NOTIFICATION: list[Row] = [
    (notif(title="t" * 128), None),
    (notif(title="t" * 129), "title must have at most 128 bytes"),
    (notif(title="世" * 42 + "ab"), None),
    (notif(title="世" * 43), "title must have at most 128 bytes"),
    (notif(title=5), "title must be a string"),
    (notif(sound=True, vibrate=True, unremovable=True), None),
    *(
        (notif(**{name: wrong}), f"{name} must be true or false")
        for name in ("sound", "vibrate", "unremovable")
        for wrong in WRONG_BOOLEANS
    ),
    (notif(click_action="open_app", open_app=True), None),
    (notif(click_action="open_app"), "open_app is missing: click_action open_app needs it"),
    (notif(click_action="open_app", open_app="yes"), "open_app must be true or false"),
    (notif(click_action="open_url", open_url="http://u"), None),
    (notif(click_action="open_url"), "open_url is missing: click_action open_url needs it"),
    (notif(click_action="open_url", open_url=""), "open_url is missing"),
    (notif(click_action="open_url", open_url=5), "open_url must be a string"),
    (notif(click_action="intent", intent="intent:#x"), None),
    (notif(click_action="intent", open_url="http://u"), "intent is missing: click_action intent needs it"),
    (notif(click_action="intent", intent={}), "intent must be a string"),
    (notif(click_action="fly"), "click_action must not be 'fly'"),
    (notif(click_action=1), "click_action must be a string"),
    (notif(is_upgrade_download=0), None),
    (notif(is_upgrade_download=1, download_url="http://d"), None),
    (notif(is_upgrade_download="1", download_url="http://d"), None),
    (notif(is_upgrade_download=1), "download_url is missing: is_upgrade_download 1 needs it"),
    (notif(is_upgrade_download="1"), "download_url is missing"),
    (notif(is_upgrade_download=2), "is_upgrade_download must be an integer from 0 to 1"),
    (notif(is_upgrade_download=1, download_url=5), "download_url must be a string"),
    # a pass-through message needs nothing of what a notification needs
    ({"is_notif": 0, "click_action": "open_url", "is_upgrade_download": 1}, None),
    # what this interface does not know, among it the fields of iOS
    (
        {"badge": "x", "category": [], "content-available": {}, "transparent": "?", "sendTo": 1, "x": {"y": [None]}},
        None,
    ),
]

TIMED: list[Row] = [
    ({}, "send_time is missing"),
    ({"send_time": None}, "send_time must be a string"),
    ({"send_time": 1790000010}, "send_time must be a string"),
    ({"send_time": ""}, "send_time must be a time like"),
    ({"send_time": "2026-09-22"}, "send_time must be a time like"),
    ({"send_time": "2026-09-22 10:00:00"}, "send_time must be a time like"),
    ({"send_time": "2026-9-22 1:00"}, "send_time must be a time like"),
    ({"send_time": "2026-09-31 10:00"}, "send_time must be a time like"),
    ({"send_time": "0001-01-01 00:00"}, "send_time must"),
    ({"send_time": "9999-12-31 23:59"}, "send_time must lie at least 600 seconds ahead, and within 3 days"),
    ({"send_time": minutes_from_now(-1)}, "send_time must lie at least 600 seconds ahead"),
    ({"send_time": minutes_from_now(9)}, "send_time must lie at least 600 seconds ahead"),
    ({"send_time": minutes_from_now(10)}, None),
    ({"send_time": minutes_from_now(3 * 1440)}, None),
    ({"send_time": minutes_from_now(3 * 1440 + 1)}, "send_time must lie at least 600 seconds ahead, and within 3 days"),
]


@pytest.mark.parametrize(
    "rows", [MESSAGE, TARGETS, OPTFILTER, NOTIFICATION], ids=["message", "targets", "optfilter", "notification"]
)
async def test_push(legacy: LegacyClient, installation: EdgeInstallation, android_app: App, rows: list[Row]) -> None:
    """A refused request leaves nothing in the log."""
    for fields, problem in rows:
        before = len(await installation.sent())
        body = {name: value for name, value in {"message": "m", **fields}.items() if value is not GONE}
        answer = await legacy.android(android_app, **body)
        check(answer, problem, fields)
        assert (len(await installation.sent()) > before) is (problem is None), fields


async def test_timed_msg(legacy: LegacyClient, installation: EdgeInstallation, android_app: App) -> None:
    send_time = minutes_from_now(15)
    rows = [*TIMED, *(({**fields, "send_time": send_time}, problem) for fields, problem in MESSAGE + TARGETS)]
    accepted = 0
    for fields, problem in rows:
        body = {name: value for name, value in {"message": "m", **fields}.items() if value is not GONE}
        answer = await legacy.android(android_app, "/timed_msg", **body)
        check(answer, problem, fields)
        accepted += problem is None
    assert len(await installation.tasks()) == accepted
    assert not await installation.sent()


@pytest.mark.parametrize(
    ("method", "path", "rows"),
    [
        (
            "DELETE",
            "/timed_msg",
            [
                ({}, "task_key is missing"),
                ({"task_key": ""}, "task_key must not be empty"),
                ({"task_key": 5}, "task_key must be a string"),
                ({"task_key": ["x"]}, "task_key must be a string"),
                ({"task_key": "0" * 32}, ""),
            ],
        ),
        (
            "DELETE",
            "/push",
            [
                ({}, "msgid is missing"),
                ({"msgid": None}, "msgid must be an integer or a string"),
                ({"msgid": "x"}, "msgid must be an integer"),
                ({"msgid": 1.5}, "msgid must be an integer or a string"),
                ({"msgid": [1]}, "msgid must be an integer or a string"),
                ({"msgid": -1}, "msgid must be an integer from 0 to"),
                ({"msgid": 2**64}, "msgid must be an integer from 0 to"),
                ({"msgid": "18446744073709551616"}, "msgid must be an integer from 0 to"),
                ({"msgid": 0}, "msgid names no broadcast of this app that can be cancelled"),
                ({"msgid": 2**63 - 1}, "msgid names no broadcast of this app that can be cancelled"),
                ({"msgid": "12"}, "msgid names no broadcast of this app that can be cancelled"),
            ],
        ),
    ],
)
async def test_refused_cancels(legacy: LegacyClient, android_app: App, method: str, path: str, rows: list[Row]) -> None:
    for fields, problem in rows:
        check(await legacy.android(android_app, path, method, **fields), problem, fields)
