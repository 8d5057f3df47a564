"""POST /getAckInfo through HTTP, with the analytics role behind it."""

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import analytics.main
import analytics.settings
from analytics.acks import AckPage, AckReader
from edge.android.replies import acks_reply
from edge.core.analytics_calls import AckPages
from protos.analytics.v1.analytics_pb2 import Ack, ListAcksResponse
from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.registry_pb2 import UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.apps import AppDirectory
from services.errors import UnavailableError
from testkit.edge.legacy_client import LegacyClient, Row, check
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.faults.slow_log import SlowLog
from testkit.signing import signed

CLOSED = {"result": 400, "desc": "input error: getAckInfo is not enabled for this app"}


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[EdgeInstallation]:
    settings = functools.partial(analytics.settings.AnalyticsSettings, ack_delay_s=0)
    async with edge_installation(tmp_path, {**BACKENDS, "analytics": (settings, analytics.main.build)}) as installation:
        yield installation


async def enable(installation: EdgeInstallation, app: App, is_enabled: bool) -> None:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, ack_info_enabled=is_enabled))


async def unavailable(*_: object) -> AckPage:
    raise UnavailableError("ClickHouse: connection refused")


async def test_acknowledgements_are_refused_until_the_operator_enables_them(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = {"result": 0, "desc": "ok", "ack_info_list": [], "has_more": False}
    assert await legacy.android(android_app, "/getAckInfo", pos="0") == CLOSED
    assert await legacy.android(android_app, "/getAckInfo") == CLOSED
    with monkeypatch.context() as patched:
        patched.setattr(installation.log, "ends", unavailable)
        assert (await legacy.android(android_app, "/getAckInfo", pos="0"))["result"] == 500
    await enable(installation, android_app, True)
    answer = await legacy.android(android_app, "/getAckInfo", pos="0")
    assert answer == {**empty, "pos": answer["pos"]}
    assert await legacy.android(android_app, "/getAckInfo", pos=answer["pos"]) == answer
    with monkeypatch.context() as patched:
        patched.setattr(AckReader, "page", unavailable)
        content = signed({"appkey": android_app.appkey, "pos": "0"}, installation.secrets[android_app.appkey])
        refused = await installation.android.post("/getAckInfo", content=content)
    assert (refused.status_code, refused.headers["retry-after"], refused.json()["result"]) == (503, "5", 503)
    await enable(installation, android_app, False)
    while (answer := await legacy.android(android_app, "/getAckInfo", pos="0")) != CLOSED:
        assert answer["result"] == 0


def test_only_a_message_that_was_handed_over_has_a_channel() -> None:
    page = ListAcksResponse(acks=[Ack(msgid=1, token="t"), Ack(msgid=2, token="t", channel="webpush")], pos="0")
    assert msgspec.to_builtins(acks_reply(page))["ack_info_list"] == [
        {"msgid": 1, "token": "t"},
        {"msgid": 2, "token": "t", "channel": "webpush"},
    ]


async def test_the_app_is_refreshed_before_a_refusal(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    """`android_app` is the app before the change, as a lagging process knows it."""
    await enable(installation, android_app, True)
    log = SlowLog(installation.log)
    behind = AppDirectory(log)
    reading = asyncio.create_task(behind.run(asyncio.Event()))
    await log.read_begun.wait()
    checking = asyncio.create_task(AckPages(behind, installation.context.peers).check_enabled(android_app))
    await legacy.android(android_app, message="another request, so that the check is on its way")
    log.released.set()
    await checking
    reading.cancel()


async def test_every_rule(legacy: LegacyClient, installation: EdgeInstallation, android_app: App) -> None:
    await enable(installation, android_app, True)
    base: dict[str, Any] = {"pos": "0"}
    rows: list[Row] = [
        ({"pos": "0"}, None),
        ({"pos": 0}, None),
        ({}, "pos is missing"),
        ({"pos": None}, "pos must be an integer or a string"),
        ({"pos": ""}, "pos must not be empty"),
        ({"pos": "elsewhere"}, "pos"),
        ({"pos": 5}, "pos"),
        ({"pos": -1}, "pos"),
        ({"pos": 10**400}, "pos"),
        ({"pos": "世"}, "pos"),
        ({"pos": "A" * 100_000}, "pos"),
        ({"pos": ["0"]}, "pos must be an integer or a string"),
        ({"pos": 0.5}, "pos must be an integer or a string"),
        ({**base, "reqno": 1}, None),
        ({**base, "reqno": "1"}, None),
        ({**base, "reqno": 1000}, None),
        ({**base, "reqno": None}, None),
        ({**base, "reqno": 0}, "reqno must be an integer from 1 to 1000"),
        ({**base, "reqno": "0"}, "reqno must be an integer from 1 to 1000"),
        ({**base, "reqno": 1001}, "reqno must be an integer from 1 to 1000"),
        ({**base, "reqno": "1001"}, "reqno must be an integer from 1 to 1000"),
        ({**base, "reqno": "many"}, "reqno must be an integer"),
        ({**base, "reqno": [1]}, "reqno must be an integer"),
    ]
    for fields, problem in rows:
        check(await legacy.android(android_app, "/getAckInfo", **fields), problem, fields)
