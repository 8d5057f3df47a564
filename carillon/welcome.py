"""The lines that `carillon up` prints once it is ready: its endpoints, and how to send a first push to the demo app.

The first start, when there is no app yet, creates the demo app. Later starts print the commands as long as the oldest
app still has the demo app's names. The commands name a file of the data directory with its secret: other users of the
machine see what stands in a command line, and the shell's history keeps it.
"""

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from carillon.commands.output import is_unicode_terminal, say, say_light_on_dark
from console.first_start import FirstStart
from console.settings import ConsoleSettings
from console.shell.qr import qr_lines
from edge.core.parsing.canonical import canonical_text
from edge.core.signature import sign_text
from protos.delivery.v1.delivery_pb2 import GetAppleStateRequest
from protos.delivery.v1.delivery_pb2_grpc import AppleStateServiceStub
from protos.registry.v1.apps_pb2 import CHANNEL_APNS, PLATFORM_ANDROID, App, Channel
from protos.registry.v1.registry_pb2 import CreateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.channel_credentials.fields import ChannelVendor
from services.domain.channel_credentials.forms import FORMS
from services.domain.role import RoleContext
from services.net.http.client_address import url_host
from services.net.http.device_link import device_link, is_of_this_machine
from services.process.durable import written_beside

DEMO = CreateAppRequest(platform=PLATFORM_ANDROID, name="Demo", package="org.example.demo", account="carillon-demo")
SECRET_FILE = "demo-app.secret"  # noqa: S105
"""The file of the data directory with the demo app's secret, readable by its owner alone."""

_APPLE = ChannelVendor("Apple", "Apple's push service", "CARILLON_APNS_URL=https://api.push.apple.com sends to Apple.")

_ALIAS = "alice"


class InterfaceAddress(NamedTuple):
    """A URL of the service, with a title for people."""

    title: str
    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{url_host(self.host)}:{self.port}{self.path}"


class WelcomePrinter:
    """The last service to start: creates the demo app if there is no app, then prints the lines.

    Where nobody can log in to the console yet, the last lines are the link with which a person begins.
    """

    name = "welcome"

    def __init__(
        self, context: RoleContext, endpoints: Sequence[InterfaceAddress], console: ConsoleSettings, data: Path
    ) -> None:
        self._context = context
        self._endpoints = endpoints
        self._gateway_url = console.gateway_url
        self._first_start = FirstStart(console, context.peers)
        self._secret_file = data.absolute() / SECRET_FILE

    async def run(self, ready: asyncio.Event) -> None:
        lines = [*endpoint_lines(self._endpoints), *simulator_lines(await self._simulators())]
        app = await self._demo_app()
        if app is None:
            self._secret_file.unlink(missing_ok=True)
        else:
            secret = self._context.keys.open(app.sealed_secret, app.appkey)
            with written_beside(self._secret_file, f"{secret}\n".encode()) as fresh:
                os.replace(fresh, self._secret_file)
            carillon = command_line(sys.argv[0], os.environ)
            lines += ["", *first_push_lines(app, secret, self._secret_file, self._endpoints, carillon)]
            lines += phone_lines(self._gateway_url, app.appkey)
        say(*lines)
        if app is not None:
            say_phone_code(self._gateway_url, app.appkey)
        if link := await self._first_start.lines():
            say(*link)
        ready.set()
        await asyncio.Event().wait()

    async def _simulators(self) -> "Sequence[Channel.ValueType]":
        """Return the channels in the place of whose services delivery has a simulator answer."""
        delivery = AppleStateServiceStub(self._context.peers.all("delivery")[0])
        return (await delivery.GetAppleState(GetAppleStateRequest())).simulators

    async def _demo_app(self) -> App | None:
        apps = self._context.apps.all()
        if apps:
            return apps[0] if is_demo(apps[0]) else None
        registry = RegistryServiceStub(self._context.peers.all("registry")[0])
        app: App = (await registry.CreateApp(DEMO)).app
        return app


def is_demo(app: App) -> bool:
    """Return whether the app has the names that the first start gives to the demo app."""
    names = (app.platform, app.name, app.package, app.account)
    return names == (DEMO.platform, DEMO.name, DEMO.package, DEMO.account)


def command_line(program: str, env: Mapping[str, str]) -> str:
    """Return how to type `carillon` in another terminal so that it finds this service."""
    on_path = shutil.which("carillon")
    path = Path(program)
    is_on_path = on_path is not None and path.exists() and Path(on_path).samefile(path)
    data = env.get("CARILLON_DATA_DIR")
    setting = f"CARILLON_DATA_DIR={shlex.quote(data)} " if data else ""
    return setting + ("carillon" if is_on_path else shlex.quote(program))


def endpoint_lines(endpoints: Sequence[InterfaceAddress]) -> list[str]:
    """Return a line for each endpoint, under a heading."""
    return ["Carillon is ready.", *(f"  {endpoint.title:<20} {endpoint.url}" for endpoint in endpoints)]


def simulator_lines(channels: "Sequence[Channel.ValueType]") -> list[str]:
    """Return a line for each channel in the place of whose service a simulator answers."""
    return [
        f"A simulator answers in the place of {vendor.service}: what it accepts does not leave this installation."
        f" {vendor.setting}"
        for vendor in (_APPLE if channel == CHANNEL_APNS else FORMS[channel].vendor for channel in channels)
    ]


def first_push_lines(
    app: App, secret: str, secret_file: Path, endpoints: Sequence[InterfaceAddress], carillon: str
) -> list[str]:
    """Return commands to paste: connect a virtual device, send a push to it, show what happened to the push."""
    push_url = next(endpoint.url for endpoint in endpoints if endpoint.path == "/v2/push")
    gateway_url = next(endpoint.url for endpoint in endpoints if endpoint.path == "/device/v1")
    body, signed = first_push(app.appkey, secret)
    by_file = f"{carillon} send --secret-file {shlex.quote(str(secret_file))}"
    return [
        f"1. In a second terminal, connect a virtual device of the app {app.name} ({app.appkey}):",
        f"   {carillon} device run --appkey {app.appkey} --alias {_ALIAS} --url {gateway_url}",
        "2. In a third terminal, send a push to all devices of the app with either of these commands:",
        f"   curl -s {push_url} -H 'Content-Type: application/json' -d {shlex.quote(signed)}",
        f"   echo {shlex.quote(body)} | {by_file} --url {push_url} -",
        "3. Show what happened to the push; ID is the id in the answer:",
        f"   {carillon} audit push ID",
    ]


def phone_lines(gateway_url: str, appkey: str) -> list[str]:
    """Return the link that connects a phone, or what to set so that a phone can reach the gateway."""
    if is_of_this_machine(gateway_url):
        host = urlsplit(gateway_url).hostname
        return [
            f"4. For this push on a phone, start again with an address that it reaches instead of {host}:",
            "   set CARILLON_HOST to this machine's address in the phone's network. See docs/first-phone.md.",
        ]
    return [
        "4. For this push on a phone (docs/first-phone.md), open this link in an app there, and repeat 2:",
        f"   {device_link(gateway_url, appkey)}",
    ]


def say_phone_code(gateway_url: str, appkey: str) -> None:
    """Print the link as a QR code, on a terminal that can show it, if a phone can reach the gateway."""
    if not is_of_this_machine(gateway_url) and is_unicode_terminal():
        say_light_on_dark(*qr_lines(device_link(gateway_url, appkey)))


def first_push(appkey: str, secret: str) -> tuple[str, str]:
    """Return the JSON text of a push to all devices of the app, without a sign and with it."""
    push = {
        "sendTo": {"appkey": {"android": appkey}, "userScope": 1},
        "msgStyle": {
            "basic": {"content": "Hello from Carillon", "is_notif": 1},
            "android": {"title": "First push", "click_action": 1, "click_param": ""},
        },
        "option": {"period": 3600},
    }
    body = json.dumps(push, ensure_ascii=False)
    sign = sign_text(canonical_text(body.encode()), [secret])
    return body, json.dumps({**push, "sign": sign}, ensure_ascii=False)
