"""Text with NUL is refused in every field that is read of a request, in frames, and in an operator's call."""

import json
import re
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.registry_pb2 import CreateAppRequest, GetAppRequest, RevokeDeviceKeyRequest, UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Origin
from services.errors import InputError, NotFoundError
from testkit.edge.role import EdgeInstallation
from testkit.edge.valid_requests import valid_requests
from testkit.signing import signed

PROOF = ("sign", "appkey", "token", "key", "type")


async def test_every_endpoint_refuses_nul_in_what_it_reads(installation: EdgeInstallation) -> None:
    """NUL is in the last text of every valid request."""
    for valid in await valid_requests(installation):
        before = len(await installation.sent())
        bodies = {}
        if (text := last_text(valid.body, "")) is not None:
            body = json.loads(json.dumps(valid.body))
            *parents, last = text[1]
            inside = body
            for step in parents:
                inside = inside[step]
            inside[last] = "a\0b"
            bodies[text[0]] = body
        for place, body in bodies.items():
            http = valid.client(installation)
            answer = (await http.request(valid.method, valid.path, content=signed(body, *valid.secrets))).json()
            if answer["result"] == 0 and place.startswith("msgStyle."):  # of a platform that this push is not for
                read = [MessageToJson(push.message) for push in (await installation.sent())[before:]]
                assert not [text for text in read if "\\u0000" in text]
                before += len(read)
            else:
                place = re.sub(r"^param\.(?=\d+\.)", "params.", place)  # the name of both in errors
                assert answer == {"result": 400, "desc": f"input error: {place} must not contain NUL"}, body
        assert len(await installation.sent()) == before


def last_text(value: Any, path: str) -> tuple[str, list[Any]] | None:
    """Return path and steps of the last text of a request that does not choose the secrets."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in reversed(list(steps)):
        own = f"{path}[{step}]" if isinstance(value, list) else f"{path}.{step}".lstrip(".")
        if step in PROOF:
            continue
        if isinstance(inner, str):
            return own, [step]
        if found := last_text(inner, own):
            return found[0], [step, *found[1]]
    return None


async def test_nul_where_nothing_is_read_is_ignored(installation: EdgeInstallation) -> None:
    """In unknown fields and keys, and in the fields of a notification of a push that shows none."""
    app = await installation.app()
    unread = {"unread": {"deep": ["", "a\0"]}, "\0": 1}
    body = {"sendTo": {"appkey": {"android": app.appkey}, "userScope": 1}, **unread}
    style = {"basic": {"content": "c", "is_notif": 0, **unread}, "android": {"title": "\0"}}
    assert (await installation.push({**body, "msgStyle": style}, app.appkey))["result"] == 0
    for shown in ({"title": "\0"}, {"click_action": 2, "click_param": "a\0"}):
        style = {"basic": {"content": "c", "is_notif": 1}, "android": shown}
        answer = await installation.push({**body, "msgStyle": style}, app.appkey)
        (name,) = (name for name in shown if name != "click_action")
        assert answer == {"result": 400, "desc": f"input error: msgStyle.android.{name} must not contain NUL"}
    assert len(await installation.sent()) == 1


async def test_an_escaped_backslash_before_u0000_is_no_nul(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = {"sendTo": {"appkey": {"android": app.appkey}, "userScope": 1}, "extra": "\\u0000"}
    style = {"msgStyle": {"basic": {"content": "\\u0000", "is_notif": 0}}}
    assert (await installation.push({**body, **style}, app.appkey))["result"] == 0


async def test_a_wrong_sign_is_answered_first(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = {"appkey": app.appkey, "message": "\0", "sign": "0" * 32}
    answer = await installation.android.post("/push", content=json.dumps(body))
    assert answer.json()["result"] == 401


FRAMES: list[tuple[dict[str, Any], str]] = [
    ({"appkey": "1\0"}, "appkey"),
    ({"token": "a\0"}, "token"),
    ({"key": "a\0"}, "key"),
    ({"unread": [{"x": "\0"}]}, "unread[0].x"),
    ({"\0": 1}, "a key"),
]


async def test_of_device_frames_over_http(installation: EdgeInstallation) -> None:
    for fields, place in FRAMES:
        app = await installation.app(PLATFORM_IOS)
        frame = {"type": "hello", "appkey": app.appkey, "token": "ab" * 32, **fields}
        answer = (await installation.http.post("/device/v1", content=json.dumps(frame))).json()
        assert answer == {"type": "error", "code": 400, "desc": f"input error: {place} must not contain NUL"}


async def test_of_operators_calls(installation: EdgeInstallation) -> None:
    app = await installation.app()
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    before = await registry.GetApp(GetAppRequest(appkey=app.appkey))
    with pytest.raises(InputError, match=r"^account must not contain NUL"):
        await registry.CreateApp(CreateAppRequest(platform=PLATFORM_IOS, name="n", package="p", account="a\0"))
    with pytest.raises(InputError, match=r"^origin.address must not contain NUL"):
        await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, name="n", origin=Origin(address="\0")))
    with pytest.raises(InputError, match=r"^token must not contain NUL"):
        await registry.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=app.appkey, token="t\0"))
    with pytest.raises(NotFoundError):
        await registry.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=app.appkey, token="t"))
    assert await registry.GetApp(GetAppRequest(appkey=app.appkey)) == before
