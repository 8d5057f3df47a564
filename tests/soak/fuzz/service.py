"""The fuzzed service: every role in this process over the embedded log, with real sockets and a manual clock."""

import asyncio
import contextlib
import json
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
from services.gateway.server import GatewayServer
from services.gateway.settings import GatewaySettings
from services.runtime.http.operations import Operations
from testkit import plain_http
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.edge.valid_requests import valid_requests
from testkit.gateway.websocket import DeviceClient
from testkit.services import running_services
from tests.soak.fuzz.cases import Names
from tests.soak.fuzz.generator import Template, device_frames, hello_frames, template
from tests.soak.fuzz.values import Object

_PLACEHOLDERS = ("7000000001", "7000000002", "7000000003")
_TASK, _MSGID, _TOKEN, _KEY = (
    "placeholder-of-a-task",
    "7000000000000004",
    "placeholder-of-a-token",
    "placeholder-of-a-key",
)
_ANALYTICS_PATHS = ("/v2/statistics", "/getAckInfo")


class FuzzedService:
    """A running service. `applications` are the edge's ASGI applications, `ports` the listeners by name."""

    def __init__(
        self,
        installation: EdgeInstallation,
        interfaces: Interfaces,
        ports: dict[str, int],
        names: Names,
        calls: list[Template],
    ) -> None:
        self.clock = installation.clock
        self.applications = {"v2": interfaces.v2, "android": interfaces.android, "ios": interfaces.ios}
        self.ports = ports
        self.names = names
        self.calls = calls
        self._installation = installation

    @property
    def appkey(self) -> str:
        """The Android app whose devices the fuzzer plays."""
        return self.names.put(_PLACEHOLDERS[0].encode()).decode()

    @property
    def frames(self) -> list[Object]:
        return device_frames(int(_MSGID))

    @property
    def hellos(self) -> list[Object]:
        return hello_frames(_PLACEHOLDERS[0], _TOKEN, _KEY)

    async def control(self) -> str | None:
        """Send a push of an app that is not fuzzed to a new device, tag it, and time a push.

        Return None when all of it works, else the step that did not.
        """
        step = "the operations port"
        try:
            async with asyncio.timeout(60):
                async with plain_http.async_client() as http:
                    url = f"http://127.0.0.1:{self.ports['console']}/healthz"
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
async def fuzzed_service(directory: Path, *, with_analytics: bool) -> AsyncIterator[FuzzedService]:
    """Run the service in an empty directory; without analytics its calls are not made."""
    gateways: list[GatewayServer] = []
    backends: dict[str, Any] = {**BACKENDS, "delivery": (DeliverySettings, services.delivery.main.build)}
    if with_analytics:
        backends["analytics"] = (AnalyticsSettings, analytics.main.build)
    backends["gateway"] = (partial(GatewaySettings, gateway_port=0), partial(_build_gateway, gateways))
    async with edge_installation(directory, backends) as installation:
        operations = Operations("127.0.0.1", 0)
        settings = EdgeSettings(data_dir=str(directory), partitions=4, timezone="Asia/Shanghai")
        with contextlib.closing(Interfaces(settings, installation.context)) as interfaces:
            async with running_services([operations]):
                operations.set_ready()
                ports = {
                    "v2": installation.http.base_url.port,
                    "android": installation.android.base_url.port,
                    "ios": installation.ios.base_url.port,
                    "console": operations.port,
                    "gateway": gateways[0].port,
                }
                names, calls = await _valid(installation, gateways[0].port)
                if not with_analytics:
                    calls = [call for call in calls if call.path not in _ANALYTICS_PATHS]
                yield FuzzedService(installation, interfaces, ports, names, calls)  # type: ignore[arg-type]


def _build_gateway(found: list[GatewayServer], settings: GatewaySettings, context: RoleContext) -> BuiltRole:
    role = services.gateway.main.build(settings, context)
    server = role.services[-1]
    assert isinstance(server, GatewayServer)
    found.append(server)
    return role


async def _valid(installation: EdgeInstallation, gateway_port: int) -> tuple[Names, list[Template]]:
    """Return the names of this installation, and every valid call, device frames over HTTP included."""
    valid = await valid_requests(installation)
    appkeys = list(installation.secrets)
    assert len(appkeys) == len(_PLACEHOLDERS)
    by_secret = {secret: appkey for appkey, secret in installation.secrets.items()}
    device = await DeviceClient.connect(gateway_port)
    welcome = await device.hello(appkeys[0])
    device.transport.disconnect()
    task = next(call.body["task_key"] for call in valid if "task_key" in call.body)
    msgid = next(call.body["msgid"] for call in valid if "msgid" in call.body)
    real = dict(zip(_PLACEHOLDERS, appkeys, strict=True))
    real |= {_TASK: task, _MSGID: str(msgid), _TOKEN: welcome["token"], _KEY: welcome["key"]}
    placeholder_of = {appkey: placeholder for placeholder, appkey in real.items()}
    names = Names(real, {placeholder_of[appkey]: secret for appkey, secret in installation.secrets.items()})
    calls = [
        template(
            call.interface,
            call.method,
            call.path,
            names.taken(json.dumps(call.body)),
            tuple(placeholder_of[by_secret[secret]] for secret in call.secrets),
        )
        for call in valid
    ]
    owner = [("appkey", _PLACEHOLDERS[0]), ("token", _TOKEN), ("key", _KEY)]
    calls += [
        Template("v2", "POST", "/device/v1", Object([*frame, *owner]), ()) for frame in device_frames(int(_MSGID))
    ]
    ios_hello = Object([("type", "hello"), ("appkey", _PLACEHOLDERS[1]), ("token", "ab" * 32)])
    return names, [*calls, Template("v2", "POST", "/device/v1", ios_hello, ())]
