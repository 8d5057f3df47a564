"""An app is paused in the middle of a broadcast and resumed: nothing is sent meanwhile, nothing is lost or repeated.

No test waits for time. A broadcast of another app at the same speed through the same gateway is the clock: once it has
arrived, what was under way has arrived too, and the paused one would have gone on.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from carillon.commands.role_calls import SOCKET_NAME
from protos.registry.v1.registry_pb2 import PauseAppsRequest, ResumeAppsRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.settings import Settings, load
from services.net.rpc.channel import connect
from testkit import plain_http
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.signing import signed
from testkit.waiting import run_ready_tasks, until_holds
from tests.journeys.test_push import message

DEVICES = 10
KILLED_DEVICES = 25
SLOW = {"qps": 3}


class Audience:
    """Connected devices of an app, and how often each message was shown on each of them."""

    def __init__(self, carillon: Installation, app: AppCredentials, count: int) -> None:
        self._carillon = carillon
        self._app = app
        self.devices = [VirtualDevice(carillon.gateway_url, app.appkey) for _ in range(count)]
        self.shown: Counter[tuple[str, str]] = Counter()
        self.welcomes = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        await asyncio.gather(*(device.connect() for device in self.devices))
        self._tasks = [asyncio.create_task(self._count(device)) for device in self.devices]

    async def _count(self, device: VirtualDevice) -> None:
        while True:
            event = await device.events.get()
            self.welcomes += event["type"] == "welcome"
            if event["type"] == "push":
                self.shown[str(device.token), event["content"]] += 1

    def reached(self, content: str) -> int:
        """Return the number of devices that have shown the message."""
        return sum(shown == content for _, shown in self.shown)

    def assert_everybody_was_shown_once(self, content: str) -> None:
        counts = {token: self.shown[token, content] for token in (str(device.token) for device in self.devices)}
        assert set(counts.values()) == {1}, counts

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for device in self.devices:
            await device.close()


@contextlib.asynccontextmanager
async def audience(carillon: Installation, app: AppCredentials, count: int) -> AsyncIterator[Audience]:
    connected = Audience(carillon, app, count)
    await connected.connect()
    yield connected
    await connected.close()


@contextlib.asynccontextmanager
async def registry(carillon: Installation) -> AsyncIterator[Any]:
    """Call the registry's instance 0, as the commands do."""
    address = carillon.env.get("CARILLON_REGISTRY_ADDR", f"unix:{carillon.data / SOCKET_NAME}").partition(",")[0]
    channel = connect(address, load(Settings, carillon.env).tls())
    yield RegistryServiceStub(channel)
    await channel.close()


async def refused(carillon: Installation, body: Any, *secrets: str) -> int:
    """Return the HTTP status of a push."""
    async with plain_http.async_client(base_url=carillon.v2_url, timeout=30) as http:
        return (await http.post("/v2/push", content=signed(body, *secrets))).status_code


async def test_a_broadcast_stops_at_the_pause_and_goes_on_after_the_resume(
    carillon: Installation, app: AppCredentials, server: AppServer
) -> None:
    other = carillon.create_app()

    async def others_broadcast(content: str) -> None:
        await server.push(message(other, 1, content, SLOW), other.secret_key)
        await until_holds(lambda: others.reached(content) == len(others.devices))

    async with (
        registry(carillon) as stub,
        audience(carillon, app, DEVICES) as own,
        audience(carillon, other, 3) as others,
    ):
        await server.push(message(app, 1, "slow", SLOW), app.secret_key)
        timed = {"timed": 2, "send_time_interval": 2}
        await server.push(message(app, 1, "timed", timed), app.secret_key)
        await until_holds(lambda: own.reached("slow") >= 1)
        paused = await stub.PauseApps(PauseAppsRequest(appkey=app.appkey, reason="journey"))
        assert not paused.unconfirmed

        await others_broadcast("what was under way has arrived")
        at_pause = own.reached("slow")
        assert at_pause < DEVICES
        assert await refused(carillon, message(app, 1, "refused"), app.secret_key) == 403
        await others_broadcast("time has passed")
        await others_broadcast("the timed message has fallen due")
        assert (own.reached("slow"), own.reached("timed")) == (at_pause, 0)

        assert not (await stub.ResumeApps(ResumeAppsRequest(appkey=app.appkey))).unconfirmed
        await until_holds(lambda: own.reached("slow") == own.reached("timed") == DEVICES)
        await others_broadcast("what might be repeated has arrived")
        own.assert_everybody_was_shown_once("slow")
        own.assert_everybody_was_shown_once("timed")
        assert own.reached("refused") == 0


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path / "data", None)
    installation.start()
    yield installation
    installation.close()


@pytest.mark.long
async def test_kill_9_while_all_apps_are_paused(installation: Installation) -> None:
    app = installation.create_app()
    server = AppServer(installation.v2_url)
    async with audience(installation, app, KILLED_DEVICES) as own:
        await server.push(message(app, 1, "slow", {"qps": 1}), app.secret_key)
        await until_holds(lambda: own.reached("slow") >= 1)
        await asyncio.to_thread(installation.carillon, "app", "pause", "--all", "--reason", "kill -9")
        for kills in range(2):
            await asyncio.to_thread(installation.kill)
            await run_ready_tasks()
            at_kill = own.reached("slow")
            assert at_kill < KILLED_DEVICES
            await asyncio.to_thread(installation.start)
            await until_holds(lambda kills=kills: own.welcomes >= KILLED_DEVICES * (2 + kills))  # type: ignore[misc]
            assert await refused(installation, message(app, 1, "refused"), app.secret_key) == 403
            assert own.reached("slow") == at_kill
        await asyncio.to_thread(installation.carillon, "app", "resume", "--all")
        await until_holds(lambda: own.reached("slow") == KILLED_DEVICES)
        await server.push(message(app, 1, "after"), app.secret_key)
        await until_holds(lambda: own.reached("after") == KILLED_DEVICES)
        own.assert_everybody_was_shown_once("slow")
        own.assert_everybody_was_shown_once("after")
    await server.close()
    installation.stop()
