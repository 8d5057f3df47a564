"""Every rule of POST /push, POST /timed_msg and the other Android requests, one row each: at its limit and past it.

`None` stands for accepted. Each row goes through the real interface.
"""

from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import App
from testkit.edge.legacy_client import GONE, LegacyClient, Row, check
from testkit.edge.push_rules import minutes_from_now
from testkit.edge.role import EdgeInstallation
from tests.edge.android.target_rows import OPTFILTER, TARGETS

NOTIFICATION_FIELDS = (
    *("title", "sound", "vibrate", "unremovable", "click_action", "open_app", "open_url", "intent"),
    *("is_upgrade_download", "download_url"),
)
WRONG_BOOLEANS: tuple[Any, ...] = ("true", 1, [])


def notif(**fields: Any) -> dict[str, Any]:
    return {"is_notif": 1, **fields}


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
    ({"is_notif": True}, "is_notif must be an integer"),
    ({"is_notif": 1.0}, None),
    ({"is_notif": 0.5}, "is_notif must be an integer"),
    ({"is_notif": [1]}, "is_notif must be an integer"),
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
    ({"period": {}}, "period must be an integer"),
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
    (notif(**dict.fromkeys(NOTIFICATION_FIELDS)), None),
    (notif(click_action="open_app", open_app=None), "open_app is missing: click_action open_app needs it"),
    (notif(click_action="open_url", open_url=None), "open_url is missing: click_action open_url needs it"),
    (notif(click_action="intent", intent=None), "intent is missing: click_action intent needs it"),
    (notif(click_action="fly"), "click_action must not be 'fly'"),
    (notif(click_action=1), "click_action must be a string"),
    (notif(is_upgrade_download=0), None),
    (notif(is_upgrade_download=1, download_url="http://d"), None),
    (notif(is_upgrade_download="1", download_url="http://d"), None),
    (notif(is_upgrade_download=1), "download_url is missing: is_upgrade_download 1 needs it"),
    (notif(is_upgrade_download="1"), "download_url is missing"),
    (notif(is_upgrade_download=1, download_url=None), "download_url is missing: is_upgrade_download 1 needs it"),
    (notif(is_upgrade_download=2), "is_upgrade_download must be an integer from 0 to 1"),
    (notif(is_upgrade_download=1, download_url=5), "download_url must be a string"),
    # a pass-through message needs nothing of what a notification needs
    ({"is_notif": 0, "click_action": "open_url", "is_upgrade_download": 1}, None),
    ({key: [] for key in NOTIFICATION_FIELDS}, None),
    ({**{key: {"x": 5} for key in NOTIFICATION_FIELDS}, "is_notif": "0", "title": "t" * 129}, None),
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
    ({"send_time": "2026-9-22 1:00"}, None),
    ({"send_time": "2026-09-31 10:00"}, "send_time must be a time like"),
    ({"send_time": "0001-01-01 00:00"}, "send_time must"),
    ({"send_time": "9999-12-31 23:59"}, "send_time must be at least 10 minutes in the future and within 3 days"),
    ({"send_time": minutes_from_now(-1)}, "send_time must be at least 10 minutes in the future"),
    ({"send_time": minutes_from_now(9)}, "send_time must be at least 10 minutes in the future"),
    ({"send_time": minutes_from_now(10)}, None),
    ({"send_time": minutes_from_now(11)}, None),
    ({"send_time": minutes_from_now(3 * 1440)}, None),
    (
        {"send_time": minutes_from_now(3 * 1440 + 1)},
        "send_time must be at least 10 minutes in the future and within 3 days",
    ),
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
                ({"msgid": None}, "msgid must be an integer"),
                ({"msgid": "x"}, "msgid must be an integer"),
                ({"msgid": 1.5}, "msgid must be an integer"),
                ({"msgid": [1]}, "msgid must be an integer"),
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
