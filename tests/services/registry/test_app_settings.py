"""Origins of web pages whose scripts may use the device interface, the route of pushes, and reports of iPhones."""

from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import PLATFORM_IOS, ROUTE_OWN, ROUTE_UNSPECIFIED, App
from protos.registry.v1.registry_pb2 import UpdateAppRequest, WebOrigins
from services.errors import InputError
from tests.services.registry.command import Carillon
from tests.services.registry.conftest import RunningRegistry


async def change(registry: RunningRegistry, app: App, **fields: Any) -> App:
    changed: App = (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, **fields))).app
    return changed


async def test_origins_of_web_pages(registry: RunningRegistry) -> None:
    app = await registry.app()
    right = ["https://example.org", "https://a.example.org:8443", "http://localhost:3000", "http://127.0.0.1"]
    changed = await change(registry, app, web_origins=WebOrigins(origins=[*right, right[0]]))
    assert list(changed.web_origins) == right
    for wrong in ("", "*", "null", "https://example.org/", "https://Example.org", "https://example.org:443",
                  "http://example.org", "example.org", "https://a b", "https://x/y", "https://x?"):  # fmt: skip
        with pytest.raises(InputError, match="web_origins"):
            await change(registry, app, web_origins=WebOrigins(origins=[wrong]))
    with pytest.raises(InputError, match="at most 32"):
        await change(registry, app, web_origins=WebOrigins(origins=[f"https://{n}.example" for n in range(33)]))
    assert not list((await change(registry, app, web_origins=WebOrigins())).web_origins)


async def test_the_command_names_and_shows_origins(registry: RunningRegistry, carillon: Carillon) -> None:
    app = await registry.app()
    named = await carillon("set", app.appkey, "--web-origins", "https://example.org", "--json")
    assert named.lines[0]["web_origins"] == ["https://example.org"]
    assert "https://example.org" in (await carillon("show", app.appkey)).out
    gone = await carillon("set", app.appkey, "--web-origins", "none", "--json")
    assert "web_origins" not in gone.lines[0]


async def test_the_route_of_pushes_that_name_none(registry: RunningRegistry, carillon: Carillon) -> None:
    app, ios = await registry.app(), await registry.app(platform=PLATFORM_IOS)
    assert "auto: over the device's own connection, or by a channel" in (await carillon("show", app.appkey)).out
    for route in ("own", "vendor", "auto"):
        (shown,) = (await carillon("set", app.appkey, "--channel-route", route, "--json")).lines
        assert shown["channel_route"] == route
        kept = await carillon("set", app.appkey, "--name", route, "--json")
        assert kept.lines[0]["channel_route"] == route
    with pytest.raises(InputError, match="channel_route must be auto, own or vendor"):
        await change(registry, app, channel_route=ROUTE_UNSPECIFIED)
    with pytest.raises(InputError, match="is an iOS app"):
        await change(registry, ios, channel_route=ROUTE_OWN)
    assert "channel_route" not in (await carillon("show", ios.appkey, "--json")).lines[0]


async def test_an_ios_app_has_its_pushes_carry_their_message_ids(registry: RunningRegistry, carillon: Carillon) -> None:
    app, android = await registry.app(platform=PLATFORM_IOS), await registry.app()
    assert "APNs reports off" in " ".join((await carillon("show", app.appkey)).out.split())
    for given, is_on in (("on", True), ("off", False)):
        (shown,) = (await carillon("set", app.appkey, "--apns-reports", given, "--json")).lines
        assert shown["apns_reports"] is is_on
        known = registry.apps.get(app.appkey)
        assert known is not None
        assert (known.apns_reports, known.HasField("apns")) == (is_on, False)
    with pytest.raises(InputError, match="is no iOS app"):
        await change(registry, android, apns_reports=True)
    assert "apns_reports" not in (await carillon("show", android.appkey, "--json")).lines[0]
