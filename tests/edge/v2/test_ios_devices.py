"""`carillon device run --platform ios` against the v2 interface and a scripted source of accepted pushes."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from carillon.commands.device import device
from protos.delivery.v1.virtual_pb2_grpc import add_VirtualPhonesServiceServicer_to_server
from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_APP_OPENED
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.apns_simulator.requests import ReceivedPush
from services.apns_simulator.server import AcceptedPushes, VirtualPhonesServicer
from services.domain.apns_payload import possession_payload
from services.domain.topics import SESSIONS, decode
from services.log.port import Partition
from services.net.rpc.server import serve
from testkit.edge.http_device import pushed_codes
from testkit.edge.role import PARTITIONS, EdgeInstallation

TIMEOUT_S = 60
TOKEN = "AB" * 32
HEADERS = {"apns-topic": "org.example.test", "apns-push-type": "alert"}
PAYLOAD = b'{"aps":{"alert":"\xe4\xbd\xa0\xe5\xa5\xbd"}}'


class ScriptedPushes:
    """An `AcceptedPushes` whose pushes the test sets; `watch_ended` is set when a watcher leaves."""

    def __init__(self) -> None:
        self._watchers: dict[str, asyncio.Queue[ReceivedPush]] = {}
        self.watch_ended = asyncio.Event()

    @contextlib.contextmanager
    def watching(self, tokens: Iterable[str]) -> "Iterator[asyncio.Queue[ReceivedPush]]":
        queue: asyncio.Queue[ReceivedPush] = asyncio.Queue()
        watched = [token.lower() for token in tokens]
        self._watchers |= dict.fromkeys(watched, queue)
        try:
            yield queue
        finally:
            for token in watched:
                del self._watchers[token]
            self.watch_ended.set()

    @property
    def tokens(self) -> list[str]:
        return list(self._watchers)

    def accept(self, token: str, payload: bytes = PAYLOAD) -> None:
        self._watchers[token.lower()].put_nowait(ReceivedPush(token, HEADERS, payload))


class VirtualDevices:
    """`carillon device run --platform ios` as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, data: Path, url: str, *options: str, addresses: str = "") -> "VirtualDevices":
        code = "from carillon.commands.device import device; device()"
        env = {name: value for name, value in os.environ.items() if not name.startswith("CARILLON_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, "run", "--platform", "ios", "--url", url, *options,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**env, "CARILLON_DATA_DIR": str(data), "CARILLON_DELIVERY_ADDR": addresses, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        return cls(process)

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            return (await self.process.stdout.readline()).decode()

    async def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.line())
        return event

    async def end(self) -> tuple[int, str, str]:
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def serving(source: AcceptedPushes | None, socket: Path) -> AsyncIterator[None]:
    server = serve([f"unix:{socket}"])
    add_VirtualPhonesServiceServicer_to_server(VirtualPhonesServicer(source), server)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@pytest.fixture
async def pushes(tmp_path: Path) -> AsyncIterator[ScriptedPushes]:
    pushes = ScriptedPushes()
    async with serving(pushes, tmp_path / "carillon.sock"):
        yield pushes


@pytest.fixture
async def ios_app(installation: EdgeInstallation) -> App:
    return await installation.app(PLATFORM_IOS)


def device_url(installation: EdgeInstallation) -> str:
    return f"{installation.http.base_url}/device/v1"


async def app_opens(installation: EdgeInstallation) -> list[tuple[int, int]]:
    """The devices that reported an app open, by partition and number."""
    starts = {Partition(SESSIONS.name, number): 0 for number in range(PARTITIONS)}
    records = (await installation.log.select(starts, 10_000)).records
    events = [(record.partition, event) for record in records for event in decode(record).batch.events]
    return [(partition, event.number) for partition, event in events if event.kind == SESSION_EVENT_KIND_APP_OPENED]


async def numbered(installation: EdgeInstallation, app: App, token: str) -> tuple[int, int]:
    """The partition and the number of a registered device."""
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    known = await registry.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=[token]))
    return known.devices[0].partition, known.devices[0].number


async def test_a_device_registers_and_prints_its_pushes(
    installation: EdgeInstallation,
    ios_app: App,
    pushes: ScriptedPushes,
    tmp_path: Path,
) -> None:
    options = ["--alias", "anna", "--tag", "5", "--tag", "-7", "--stag", "news", "--attribute", "brand=Acme", "--json"]
    app = ["--appkey", ios_app.appkey]
    device = await VirtualDevices.start(tmp_path, device_url(installation), *app, "--token", TOKEN, *options)
    printed = [await device.event() for _ in range(4)]
    assert [(event["device"], event["type"]) for event in printed] == [(1, "welcome"), (1, "ok"), (1, "ok"), (1, "ok")]
    assert (printed[0]["token"], printed[0]["new"]) == (TOKEN.lower(), True)
    assert [event["request"] for event in printed[1:]] == ["set_alias", "add_tags", "add_stags"]
    assert pushes.tokens == [TOKEN.lower()]

    pushes.accept(TOKEN.lower())
    push = await device.event()
    assert (push["type"], push["device"]) == ("push", 1)
    assert push["payload"] == {"aps": {"alert": "你好"}}
    assert push["headers"] == HEADERS
    device.process.send_signal(signal.SIGINT)
    assert await device.end() == (0, "", "")
    async with asyncio.timeout(TIMEOUT_S):
        await pushes.watch_ended.wait()
    assert (pushes.tokens, await app_opens(installation)) == ([], [])


async def test_a_device_whose_key_was_lost_comes_back_by_the_code_of_a_silent_push(
    installation: EdgeInstallation,
    ios_app: App,
    pushes: ScriptedPushes,
    tmp_path: Path,
) -> None:
    options = ("--appkey", ios_app.appkey, "--token", TOKEN, "--json")
    first = await VirtualDevices.start(tmp_path, device_url(installation), *options, "--alias", "anna")
    key = (await first.event())["key"]
    assert (await first.event())["request"] == "set_alias"
    first.process.terminate()
    await first.end()
    async with asyncio.timeout(TIMEOUT_S):
        await pushes.watch_ended.wait()

    again = await VirtualDevices.start(tmp_path, device_url(installation), *options, "--stag", "news")
    assert (await again.event())["reason"] == "possession"
    (code,) = await pushed_codes(installation)
    pushes.accept(TOKEN, possession_payload(code))
    brought = await again.line()
    assert (json.loads(brought)["type"], code in brought) == ("code", False)
    welcome = await again.event()
    assert (welcome["type"], welcome["new"], welcome["key"] == key) == ("welcome", False, False)
    assert (await again.event())["request"] == "add_stags"
    pushes.accept(TOKEN)
    assert (await again.event())["type"] == "push"
    again.process.terminate()
    assert (await again.end())[0] == 0


async def test_many_have_made_up_tokens_and_open_the_app_when_told_to(
    installation: EdgeInstallation,
    ios_app: App,
    pushes: ScriptedPushes,
    tmp_path: Path,
) -> None:
    devices = await VirtualDevices.start(
        tmp_path, device_url(installation), "--appkey", ios_app.appkey, "--count", "3", "--opens", "--json"
    )
    welcomes = [await devices.event() for _ in range(3)]
    tokens = {event["device"]: event["token"] for event in welcomes}
    assert sorted(tokens) == [1, 2, 3]
    assert sorted(pushes.tokens) == sorted(tokens.values())
    assert all(len(bytes.fromhex(token)) == 32 for token in tokens.values())
    pushes.accept(tokens[2])
    push, answer = await devices.event(), await devices.event()
    assert [(event["device"], event["type"]) for event in (push, answer)] == [(2, "push"), (2, "ok")]
    assert await app_opens(installation) == [await numbered(installation, ios_app, tokens[2])]
    devices.process.send_signal(signal.SIGTERM)
    assert (await devices.end())[0] == 0


async def test_text_output_hides_the_device_key(
    installation: EdgeInstallation,
    ios_app: App,
    pushes: ScriptedPushes,
    tmp_path: Path,
) -> None:
    device = await VirtualDevices.start(
        tmp_path, device_url(installation), "--appkey", ios_app.appkey, "--token", TOKEN
    )
    welcome = await device.line()
    assert "welcome" in welcome
    assert "key=" not in welcome
    pushes.accept(TOKEN)
    assert "你好" in await device.line()
    device.process.kill()
    await device.end()


async def test_every_instance_of_delivery_is_watched(
    installation: EdgeInstallation,
    ios_app: App,
    tmp_path: Path,
) -> None:
    first, second = ScriptedPushes(), ScriptedPushes()
    sockets = [tmp_path / "first.sock", tmp_path / "second.sock"]
    async with serving(first, sockets[0]), serving(second, sockets[1]):
        device = await VirtualDevices.start(
            tmp_path, device_url(installation), "--appkey", ios_app.appkey, "--token", TOKEN, "--json",
            addresses=",".join(f"unix:{socket}" for socket in sockets),
        )  # fmt: skip
        assert (await device.event())["type"] == "welcome"
        for pushes in (first, second):
            pushes.accept(TOKEN)
            assert (await device.event())["type"] == "push"
        device.process.kill()
        await device.end()


async def test_failures_exit_with_1_and_a_message(
    installation: EdgeInstallation,
    ios_app: App,
    pushes: ScriptedPushes,
    tmp_path: Path,
) -> None:
    app, url = ("--appkey", ios_app.appkey), device_url(installation)
    for target, options, text in (
        (url, ("--appkey", "1999999999"), "the device was refused: unauthorized"),
        ("http://127.0.0.1:1/device/v1", app, "no answer from http://127.0.0.1:1"),
        (f"{installation.http.base_url}/nothing", app, "answered HTTP 404, and no frame"),
    ):
        code, _, err = await (await VirtualDevices.start(tmp_path, target, *options)).end()
        assert (code, text in err) == (1, True), err
    (tmp_path / "empty").mkdir()
    code, _, err = await (await VirtualDevices.start(tmp_path / "empty", url, *app)).end()
    assert (code, "Start `carillon up` first" in err) == (1, True), err


async def test_devices_are_refused_where_pushes_go_to_apple(
    installation: EdgeInstallation,
    ios_app: App,
    tmp_path: Path,
) -> None:
    url = device_url(installation)
    async with serving(None, tmp_path / "carillon.sock"):
        code, out, err = await (await VirtualDevices.start(tmp_path, url, "--appkey", ios_app.appkey)).end()
    assert (code, out, "CARILLON_APNS_URL" in err) == (1, "", True), err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--token", TOKEN, "--count", "2"), "--token names one device"),
        (("--state", "/tmp"), "--state goes with --platform android"),
        (("--ca", __file__), "--ca goes with --platform android"),
        (("--platform", "android", "--opens"), "--opens goes with --platform ios"),
        (("--platform", "android", "--token", TOKEN), "--token goes with --platform ios"),
    ],
)
def test_options_of_the_other_platform_are_refused(options: tuple[str, ...], text: str) -> None:
    run = ("run", "--platform", "ios", "--url", "http://127.0.0.1:1", "--appkey", "1")
    refused = CliRunner().invoke(device, [*run, *options])
    assert (refused.exit_code, text in refused.stderr) == (2, True), refused.stderr
