"""Requests of an app from an address that it does not allow: HTTP 403, if they are signed with its secret."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import AllowFromChange, UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.edge.v2_bodies import broadcast, push_to
from testkit.edge.valid_requests import valid_requests
from testkit.signing import signed


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[EdgeInstallation]:
    async with edge_installation(tmp_path, BACKENDS, trusted_proxies="127.0.0.1") as installation:
        yield installation


async def allow(installation: EdgeInstallation, app: App, *networks: str) -> None:
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    change = AllowFromChange(networks=networks)
    await registry.UpdateApp(UpdateAppRequest(appkey=app.appkey, allow_from=change))


async def push_from(installation: EdgeInstallation, address: str, body: bytes) -> httpx.Response:
    return await installation.http.post("/v2/push", content=body, headers={"X-Forwarded-For": address})


async def test_only_listed_networks_are_admitted(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = signed(broadcast(app), installation.secrets[app.appkey])
    await allow(installation, app, "192.0.2.0/24", "2001:db8::/32")
    for address in ("192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "[2001:db8::1]:443"):
        assert (await push_from(installation, address, body)).json()["result"] == 0, address
    for address, shown in (("192.0.3.7", "192.0.3.7"), ("::ffff:192.0.3.7", "192.0.3.7"), ("2001:db9::1",) * 2):
        refused = await push_from(installation, address, body)
        assert refused.status_code == 403
        assert refused.json() == {
            "result": 403,
            "desc": f"requests of app {app.appkey} are not accepted from {shown}",
        }
    assert len(await installation.sent()) == 4
    await allow(installation, app)
    assert (await push_from(installation, "192.0.3.7", body)).json()["result"] == 0


async def test_without_the_secret_nobody_learns_that_an_app_exists(installation: EdgeInstallation) -> None:
    limited, unknown = await installation.app(), App(appkey="1999999999")
    await allow(installation, limited, "192.0.2.0/24")
    answers = [
        await push_from(installation, address, signed(broadcast(app), "not the secret"))
        for app in (limited, unknown)
        for address in ("203.0.113.9", "192.0.2.7")
    ]
    assert {(answer.status_code, answer.content) for answer in answers} == {
        (200, b'{"result":401,"desc":"sign not correct"}')
    }


async def test_every_app_of_a_request_must_allow_the_address(installation: EdgeInstallation) -> None:
    android, ios = await installation.app(), await installation.app(PLATFORM_IOS)
    await allow(installation, ios, "192.0.2.0/24")
    secrets = [installation.secrets[app.appkey] for app in (android, ios)]
    to_both = signed(push_to(android, 0, ios.appkey), *secrets)
    assert (await push_from(installation, "203.0.113.9", to_both)).status_code == 403
    assert not await installation.sent()
    assert (await push_from(installation, "192.0.2.7", to_both)).status_code == 200
    to_android = signed(push_to(android, 1, ios.appkey), *secrets)
    assert (await push_from(installation, "203.0.113.9", to_android)).status_code == 200


async def test_every_signed_request_of_every_interface_is_checked(installation: EdgeInstallation) -> None:
    requests = await valid_requests(installation)
    for app in installation.context.apps.all():
        await allow(installation, app, "192.0.2.0/24")
    before = len(await installation.sent())
    for valid in requests:
        content = signed(valid.body, *valid.secrets)
        answer = await valid.client(installation).request(valid.method, valid.path, content=content)
        assert (answer.status_code, answer.json()["result"]) == (403, 403), valid.path
    assert len(await installation.sent()) == before
