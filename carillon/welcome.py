"""What `carillon up` prints: where each door is, and while there is a demo app a first push that works when pasted.

The first start, which finds no app, makes the demo app: the oldest one, with the names below. Whoever renames it takes
it into use, and its secret is not printed again. The secret of any other app never is.
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

import click

from edge.core.parsing.canonical import canonical_text
from edge.core.signature import sign_text
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.registry_pb2 import CreateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.role import RoleContext

DEMO = CreateAppRequest(platform=PLATFORM_ANDROID, name="Demo", package="org.example.demo", account="carillon-demo")
_ALIAS = "alice"
_STAG = "news"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


class Door(NamedTuple):
    """Where somebody can knock."""

    title: str
    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{_EVERYWHERE.get(self.host, self.host)}:{self.port}{self.path}"


class Welcome:
    """The last service to start: makes the demo app on the first start, and prints a first push to try with it."""

    name = "welcome"

    def __init__(self, context: RoleContext, doors: Sequence[Door]) -> None:
        self._context = context
        self._doors = doors

    async def run(self, ready: asyncio.Event) -> None:
        lines = door_lines(self._doors)
        if (app := await self._demo_app()) is not None:
            secret = self._context.keys.open(app.sealed_secret, app.appkey)
            lines += ["", *trial_lines(app, secret, self._doors, command_line(sys.argv[0], os.environ))]
        click.echo("\n".join(lines))
        ready.set()
        await asyncio.Event().wait()

    async def _demo_app(self) -> App | None:
        apps = self._context.apps.all()
        if apps:
            return apps[0] if is_demo(apps[0]) else None
        registry = RegistryServiceStub(self._context.peers.all("registry")[0])
        app: App = (await registry.CreateApp(DEMO)).app
        return app


def is_demo(app: App) -> bool:
    """Whether an installation's oldest app is the one that its first start made."""
    of_app = (app.platform, app.name, app.package, app.account)
    return of_app == (DEMO.platform, DEMO.name, DEMO.package, DEMO.account)


def command_line(program: str, env: Mapping[str, str]) -> str:
    """How to type `carillon` in another terminal, so that it finds this service."""
    on_path = shutil.which("carillon")
    here = Path(program)
    short = on_path is not None and here.exists() and Path(on_path).samefile(here)
    data = env.get("CARILLON_DATA_DIR")
    return (f"CARILLON_DATA_DIR={shlex.quote(data)} " if data else "") + ("carillon" if short else shlex.quote(program))


def door_lines(doors: Sequence[Door]) -> list[str]:
    """Where each door is."""
    return ["Carillon is ready.", *(f"  {door.title:<20} {door.url}" for door in doors)]


def trial_lines(app: App, secret: str, doors: Sequence[Door], carillon: str) -> list[str]:
    """A first push to try."""
    push_url = next(door.url for door in doors if door.path == "/v2/push")
    gateway_url = next(door.url for door in doors if door.path == "/device/v1")
    body, signed = first_push(app.appkey, secret)
    return [
        f"1. In a second terminal, connect a virtual device of the app {app.name} ({app.appkey}):",
        f"   {carillon} device run --appkey {app.appkey} --alias {_ALIAS} --stag {_STAG} --url {gateway_url}",
        "2. In a third, send it a push; either line does:",
        f"   curl -s {push_url} -H 'Content-Type: application/json' -d {shlex.quote(signed)}",
        f"   echo {shlex.quote(body)} | {carillon} send --secret {secret} --url {push_url} -",
        "3. Ask what happened to it, with the id from the answer:",
        f"   {carillon} audit push ID",
    ]


def first_push(appkey: str, secret: str) -> tuple[str, str]:
    """The JSON of a push to the demo device, without a sign and with it."""
    push = {
        "sendTo": {"appkey": {"android": appkey}, "userScope": 6, "stag": [[_STAG]]},
        "msgStyle": {
            "basic": {"content": "Hello from Carillon", "is_notif": 1},
            "android": {"title": "First push", "click_action": 1, "click_param": ""},
        },
        "option": {"period": 3600},
    }
    body = json.dumps(push, ensure_ascii=False)
    sign = sign_text(canonical_text(body.encode()), [secret])
    return body, json.dumps({**push, "sign": sign}, ensure_ascii=False)
