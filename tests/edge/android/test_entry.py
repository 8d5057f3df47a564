"""Checks before every legacy request: path, body, JSON, appkey and sign. No input causes a 500."""

import itertools
import json
from typing import Any

import httpx
import pytest

from edge.core.parsing.body import MAX_BODY_BYTES
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App
from testkit.edge.legacy_client import LegacyClient
from testkit.edge.role import EdgeInstallation
from testkit.signing import reference_sign, signed

ENDPOINTS = {
    "android": [
        ("POST", "/push"),
        ("DELETE", "/push"),
        ("POST", "/timed_msg"),
        ("DELETE", "/timed_msg"),
        ("POST", "/getAckInfo"),
    ],
    "ios": [("POST", "/push"), ("POST", "/register"), ("DELETE", "/register")],
}
EVERY = [(interface, method, path) for interface, endpoints in ENDPOINTS.items() for method, path in endpoints]
WRONG_SIGN = {"result": 401, "desc": "sign not correct"}
FIELDS = {
    "android": (
        *(
            "message",
            "is_notif",
            "period",
            "qps",
            "filter",
            "filter_v2",
            "optfilter",
            "token",
            "alias",
            "alias_send_all",
        ),
        *("title", "sound", "vibrate", "unremovable", "click_action", "open_app", "open_url", "intent", "extra"),
        *("is_upgrade_download", "download_url", "send_time", "task_key", "msgid", "pos", "reqno"),
    ),
    "ios": ("message", "token", "period", "badge", "extra", "transparent", "content-available", "category"),
}
NONSENSE: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**63, -(2**63) - 1, 10**400, 1.5, -0.0, "", " ", "0", "-1", "1" * 400, "x\u0000y"),
    *([], [None], [[]], [[[]]], ["x"], [1, "x"], [True], {}, {"x": 1}, {"": ""}, {"phone": [10**30]}, {"a": {"b": []}}),
]


def client(installation: EdgeInstallation, interface: str) -> httpx.AsyncClient:
    return installation.android if interface == "android" else installation.ios


async def app_of(installation: EdgeInstallation, interface: str) -> App:
    return await installation.app(PLATFORM_ANDROID if interface == "android" else PLATFORM_IOS)


async def test_signs(installation: EdgeInstallation, legacy: LegacyClient) -> None:
    for endpoint in EVERY:
        await check_signs(installation, legacy, *endpoint)


async def check_signs(
    installation: EdgeInstallation, legacy: LegacyClient, interface: str, method: str, path: str
) -> None:
    http, app = client(installation, interface), await app_of(installation, interface)
    elsewhere = await app_of(installation, "ios" if interface == "android" else "android")
    secret = installation.secrets[app.appkey]
    body = {"appkey": app.appkey, "message": "世", "n": [1.50, {"b": 1, "a": 2}]}

    async def told(content: dict[str, Any], *secrets: str) -> dict[str, Any]:
        return await legacy.raw(http, method, path, signed(content, *secrets))

    assert (await told(body, secret))["result"] != 401
    assert await told(body, "wrong") == WRONG_SIGN
    assert await told(body, secret, secret) == WRONG_SIGN
    assert await told({**body, "appkey": "1999999999"}, secret) == WRONG_SIGN
    assert await told({**body, "appkey": 1999999999}, secret) == WRONG_SIGN
    assert await told({**body, "appkey": elsewhere.appkey}, installation.secrets[elsewhere.appkey]) == WRONG_SIGN
    raw = json.dumps({**body, "sign": reference_sign(json.dumps(body).encode(), secret).upper()}).encode()
    assert await legacy.raw(http, method, path, raw) == WRONG_SIGN
    changed = signed(body, secret).replace(b"1.5", b"1.6")
    assert await legacy.raw(http, method, path, changed) == WRONG_SIGN


REFUSED: list[tuple[bytes, str]] = [
    (b"", "the body is not JSON"),
    (b"\xff", "the body is not UTF-8"),
    (b"[]", "the body is not a JSON object"),
    (b'{"a":1,"a":2}', "a is given twice"),
    (b'{"a":NaN}', "the body is not JSON: NaN is no number"),
    (b'{"a":"\\ud800"}', "the body contains half of a surrogate pair"),
    (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "the body is nested deeper than 32 levels"),
    (b'{"a":' + b"[" * 100_000, "the body"),
    (b"{}", "sign is missing"),
    (b'{"sign":5}', "sign must be a string"),
    (b'{"sign":"x"}', "appkey is missing"),
    (b'{"sign":"x","appkey":null}', "appkey is missing"),
    (b'{"sign":"x","appkey":[]}', "appkey must be a string"),
]


async def test_order_of_checks(installation: EdgeInstallation, legacy: LegacyClient) -> None:
    """Body, JSON, sign and appkey present, sign, then the rest."""
    for interface, method, path in EVERY:
        http, app = client(installation, interface), await app_of(installation, interface)
        for content, problem in REFUSED:
            answer = await legacy.raw(http, method, path, content)
            assert answer["result"] == 400, content[:50]
            assert answer["desc"].startswith(f"input error: {problem}"), content[:50]
        unsigned = json.dumps({"appkey": app.appkey, "sign": "x", "message": 5, "token": 5, "pos": 5}).encode()
        assert await legacy.raw(http, method, path, unsigned) == WRONG_SIGN


UNKNOWN = [
    *(("android", method, path, 404) for method, path in [("POST", "/"), ("POST", "/register"), ("POST", "/v2/push")]),
    *(("ios", method, path, 404) for method, path in [("POST", "/timed_msg"), ("POST", "/getAckInfo")]),
    *(("android", "GET", path, 405) for path in ("/push", "/timed_msg", "/getAckInfo")),
    *(("ios", "GET", path, 405) for path in ("/push", "/register")),
    ("android", "DELETE", "/getAckInfo", 405),
    ("ios", "DELETE", "/push", 405),
]


async def test_paths_and_methods(installation: EdgeInstallation) -> None:
    for interface, method, path, status in UNKNOWN:
        answer = await client(installation, interface).request(method, path, content=b"{}")
        assert answer.status_code == status, (interface, method, path)
        assert answer.headers["content-type"] == "application/json;charset=utf-8"
        assert answer.json() == {"result": status, "desc": {404: "no such path", 405: "method not allowed"}[status]}


async def test_a_body_that_is_too_large(installation: EdgeInstallation) -> None:
    for interface, method, path in EVERY:
        answer = await client(installation, interface).request(method, path, content=b" " * (MAX_BODY_BYTES + 1))
        assert (answer.status_code, answer.json()["result"]) == (413, 413), (interface, method, path)


@pytest.mark.long
async def test_nonsense_in_any_field_is_never_500(installation: EdgeInstallation, legacy: LegacyClient) -> None:
    """One field at a time, everything else right; for /getAckInfo the app lacks the permission."""
    for interface, method, path in EVERY:
        http, app = client(installation, interface), await app_of(installation, interface)
        right = {"appkey": app.appkey, "message": "m", "is_notif": 1, "send_time": "2026-09-22 10:00"}
        for field, value in itertools.product(FIELDS[interface], NONSENSE):
            content = signed({**right, field: value}, installation.secrets[app.appkey])
            answer = await legacy.raw(http, method, path, content)
            assert answer["result"] in (0, 400, 401), (field, value, answer)
            assert answer != WRONG_SIGN, (field, value)
