"""The fuzzed service: every role in this process over the embedded log, with real sockets and a manual clock."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx

import analytics.main
import services.delivery.main
import services.gateway.main
from analytics.settings import AnalyticsSettings
from edge.interfaces import Interfaces
from edge.settings import EdgeSettings
from services.delivery.settings import DeliverySettings
from services.domain.role import BuiltRole, RoleContext
from services.gateway.listener import DeviceListener
from services.gateway.settings import GatewaySettings
from services.net.http.operations import Operations
from testkit import plain_http
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.gateway.websocket import DeviceClient
from testkit.services import running_services
from tests.soak.fuzz.cases import Names
from tests.soak.fuzz.generator import Template
from tests.soak.fuzz.organisations import create_organisations

_PROXIES = "127.0.0.0/8"
_ANALYTICS_PATHS = ("/v2/statistics", "/getAckInfo")


class FuzzedService:
    """A running service. `applications` are the edge's ASGI applications, `ports` the listeners by name.

    `organisations` has the names of each organisation, whose apps are its own; `calls` fit all of them.
    """

    def __init__(
        self,
        installation: EdgeInstallation,
        interfaces: Interfaces,
        ports: dict[str, int],
        organisations: list[Names],
        calls: list[Template],
    ) -> None:
        self.clock = installation.clock
        self.applications = {"v2": interfaces.v2, "android": interfaces.android, "ios": interfaces.ios}
        self.ports = ports
        self.organisations = organisations
        self.calls = calls
        self._installation = installation

    async def control(self) -> str | None:
        """Send a push of an app that is not fuzzed to a new device, tag it, and time a push.

        Return None when all of it works, else the step that did not.
        """
        step = "the operations port"
        try:
            async with asyncio.timeout(60):
                async with plain_http.async_client() as http:
                    url = f"http://127.0.0.1:{self.ports['operations']}/healthz"
                    assert (await http.get(url)).status_code == 200
                step = "registering a device"
                app = await self._installation.app()
                device = await DeviceClient.connect(self.ports["gateway"])
                token = (await device.hello(app.appkey))["token"]
                step = "a push to it"
                send_to = {"appkey": {"android": app.appkey}, "userScope": 5, "token": {"android": token}}
                style = {"basic": {"content": "control", "is_notif": 0}}
                assert (await self._call("/v2/push", app.appkey, sendTo=send_to, msgStyle=style))["result"] == 0
                assert (await device.next())["content"] == "control"
                step = "its tags"
                named = {"appkey": app.appkey, "action": "stag"}
                assert (await self._call("/v2/device", app.appkey, **named, params={token: ["x"]}))["result"] == 0
                found = await self._call("/v2/deviceinfo", app.appkey, **named, params=[token])
                assert found["detailsinfo"][0]["infolist"] == ["x"]
                step = "a broadcast by tag"
                send_to = {"appkey": {"android": app.appkey}, "userScope": 6, "stag": [["x"]]}
                assert (await self._call("/v2/push", app.appkey, sendTo=send_to, msgStyle=style))["result"] == 0
                assert (await device.next())["content"] == "control"
                step = "a timed push"
                option = {"timed": 2, "send_time_interval": 5}
                timed = {"sendTo": send_to, "msgStyle": style, "option": option}
                assert (await self._call("/v2/push", app.appkey, **timed))["result"] == 0
                self.clock.move(10)
                assert (await device.next())["content"] == "control"
                device.transport.disconnect()
        except (AssertionError, TimeoutError, KeyError, OSError, httpx.HTTPError) as error:
            return f"{step}: {type(error).__name__}: {error}"
        return None

    async def _call(self, path: str, signer: str, /, **body: Any) -> dict[str, Any]:
        return await self._installation.call("POST", path, body, signer)


@contextlib.asynccontextmanager
async def fuzzed_service(directory: Path, organisations: int, *, with_analytics: bool) -> AsyncIterator[FuzzedService]:
    """Run the service in an empty directory; without analytics its calls are not made."""
    gateways: list[DeviceListener] = []
    backends: dict[str, Any] = {**BACKENDS, "delivery": (DeliverySettings, services.delivery.main.build)}
    if with_analytics:
        backends["analytics"] = (AnalyticsSettings, analytics.main.build)
    backends["gateway"] = (
        partial(GatewaySettings, gateway_port=0, trusted_proxies=_PROXIES),
        partial(_build_gateway, gateways),
    )
    async with edge_installation(directory, backends, trusted_proxies=_PROXIES) as installation:
        operations = Operations("127.0.0.1", 0)
        settings = EdgeSettings(
            data_dir=str(directory), partitions=4, timezone="Asia/Shanghai", trusted_proxies=_PROXIES
        )
        # On the manual clock, which the fuzzer moves, an app's broadcasts wait for each other for a few steps only.
        interfaces = Interfaces(settings, installation.context, installation.clock)
        async with running_services([operations]):
            operations.set_ready()
            ports = {
                "v2": installation.http.base_url.port,
                "android": installation.android.base_url.port,
                "ios": installation.ios.base_url.port,
                "operations": operations.port,
                "gateway": gateways[0].port,
            }
            names, calls = await create_organisations(installation, gateways[0].port, organisations)
            if not with_analytics:
                calls = [call for call in calls if call.path not in _ANALYTICS_PATHS]
            yield FuzzedService(installation, interfaces, ports, names, calls)  # type: ignore[arg-type]


def _build_gateway(found: list[DeviceListener], settings: GatewaySettings, context: RoleContext) -> BuiltRole:
    role = services.gateway.main.build(settings, context)
    server = role.services[-1]
    assert isinstance(server, DeviceListener)
    found.append(server)
    return role
