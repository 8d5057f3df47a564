"""Signs of v2 requests: one secret, several secrets in order, and everything that is refused."""

import json
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import RotateSecretRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.errors import UnavailableError
from testkit.edge.role import EdgeInstallation
from testkit.edge.v2_bodies import broadcast
from testkit.signing import reference_sign, signed

REFUSED = {"result": 401, "desc": "sign not correct"}


def to_both(android: App, *ios: App, scope: int = 0, listed: bool = False) -> dict[str, Any]:
    keys = [app.appkey for app in ios]
    return {
        "sendTo": {"appkey": {"android": android.appkey, "ios": keys if listed else keys[0]}, "userScope": scope},
        "msgStyle": {"basic": {"content": "hello", "is_notif": 1}},
    }


async def test_two_platforms_sign_with_android_first(installation: EdgeInstallation) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    body = to_both(android, ios)
    assert (await installation.push(body, android.appkey, ios.appkey))["result"] == 0
    assert await installation.push(body, ios.appkey, android.appkey) == REFUSED
    assert await installation.push(body, android.appkey) == REFUSED
    assert await installation.push(body, ios.appkey) == REFUSED


async def test_several_ios_apps_sign_in_the_order_of_the_list(installation: EdgeInstallation) -> None:
    android = await installation.app()
    first, second = await installation.app(PLATFORM_IOS), await installation.app(PLATFORM_IOS)
    body = to_both(android, first, second, listed=True)
    assert (await installation.push(body, android.appkey, first.appkey, second.appkey))["result"] == 0
    assert await installation.push(body, android.appkey, second.appkey, first.appkey) == REFUSED
    ios_only = to_both(android, second, first, scope=2, listed=True)
    assert (await installation.push(ios_only, second.appkey, first.appkey))["result"] == 0
    assert await installation.push(ios_only, first.appkey, second.appkey) == REFUSED


@pytest.mark.parametrize("scope", [1, 2])
async def test_one_platform_of_two_signs_alone_or_with_both(installation: EdgeInstallation, scope: int) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    used, other = (android, ios) if scope == 1 else (ios, android)
    body = to_both(android, ios, scope=scope)
    assert (await installation.push(body, used.appkey))["result"] == 0
    assert (await installation.push(body, android.appkey, ios.appkey))["result"] == 0
    assert await installation.push(body, other.appkey) == REFUSED
    assert {push.appkey for push in await installation.sent()} == {used.appkey}


async def test_the_appkey_of_a_platform_left_out_may_be_anything(installation: EdgeInstallation) -> None:
    app = await installation.app()
    others: list[Any] = ["no such app", 7, [], {}, False]
    for other in others:
        body = broadcast(app)
        body["sendTo"]["appkey"]["ios"] = other
        assert (await installation.push(body, app.appkey))["result"] == 0


async def test_an_appkey_may_be_a_number(installation: EdgeInstallation) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    body = to_both(android, ios, listed=True)
    body["sendTo"]["appkey"] = {"android": int(android.appkey), "ios": [int(ios.appkey)]}
    assert (await installation.push(body, android.appkey, ios.appkey))["result"] == 0


async def test_all_wrong_signs_get_the_same_answer(installation: EdgeInstallation) -> None:
    app, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    unknown = broadcast(app)
    unknown["sendTo"]["appkey"]["android"] = "1000000000"
    wrong_platform = broadcast(app)
    wrong_platform["sendTo"]["appkey"]["android"] = ios.appkey
    right = json.loads(signed(broadcast(app), installation.secrets[app.appkey]))
    bodies = [
        signed(broadcast(app), "not the secret"),
        signed(unknown, "not the secret"),
        signed(wrong_platform, installation.secrets[ios.appkey]),
        json.dumps({**right, "sign": right["sign"].upper()}).encode(),
        json.dumps({**right, "sign": ""}).encode(),
        json.dumps({**right, "sign": "Ω" * 32}).encode(),
        json.dumps({**right, "extra": "changed on the way"}).encode(),
        json.dumps({**right, "msgStyle": "checked after the sign", "sign": "x"}).encode(),
    ]
    answers = [await installation.http.post("/v2/push", content=body) for body in bodies]
    assert {answer.content for answer in answers} == {b'{"result":401,"desc":"sign not correct"}'}
    assert {answer.status_code for answer in answers} == {200}
    assert not await installation.sent()


async def test_a_new_app_and_a_new_secret_are_accepted_at_once(installation: EdgeInstallation) -> None:
    app = await installation.app()
    assert (await installation.push(broadcast(app), app.appkey))["result"] == 0
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    rotated = await registry.RotateSecret(RotateSecretRequest(appkey=app.appkey))
    assert await installation.push(broadcast(app), app.appkey) == REFUSED
    installation.secrets[app.appkey] = rotated.secret_key
    assert (await installation.push(broadcast(app), app.appkey))["result"] == 0


async def test_while_the_log_does_not_answer_nobody_is_refused(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edge that cannot read of new apps and secrets does not tell which apps it knows either."""
    app = await installation.app()
    assert (await installation.push(broadcast(app), app.appkey))["result"] == 0
    monkeypatch.setattr(installation.log, "ends", unavailable)
    unknown = broadcast(app)
    unknown["sendTo"]["appkey"]["android"] = "1000000000"
    bodies = signed(broadcast(app), "not the secret"), signed(unknown, "not the secret")
    answers = [await installation.http.post("/v2/push", content=body) for body in bodies]
    assert {answer.content for answer in answers} == {b'{"result":500,"desc":"internal error"}'}
    assert (await installation.push(broadcast(app), app.appkey))["result"] == 0


async def unavailable(_: object) -> None:
    raise UnavailableError("the log does not answer")


async def test_numbers_are_signed_as_they_were_written(installation: EdgeInstallation) -> None:
    app = await installation.app()
    raw = json.dumps(broadcast(app)).replace('"is_notif": 1', '"is_notif": 1, "unknown": 1.50e+3')
    sign = reference_sign(raw.encode(), installation.secrets[app.appkey])
    answer = await installation.post(f'{raw[:-1]}, "sign": "{sign}"}}'.encode())
    assert answer["result"] == 0
    (push,) = await installation.sent()
    assert '"unknown":1.50e+3' in push.request_json
    assert sign not in push.request_json
