"""`carillon device run --platform ios`: over the real v2 door, and over gRPC to what a stand-in took."""

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

from protos.delivery.v1.virtual_pb2_grpc import add_VirtualPhonesServiceServicer_to_server
from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_APP_OPENED, SessionFact
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from services.apns_simulator.requests import ReceivedPush
from services.apns_simulator.watch_servicer import AcceptedPushes, VirtualPhonesServicer
from services.domain.topics import SESSIONS, decode
from services.runtime.log.port import Partition
from services.runtime.rpc.server import serve
from testkit.edge.role import PARTITIONS, EdgeInstallation

BOUND_S = 30
TOKEN = "AB" * 32
HEADERS = {"apns-topic": "org.example.test", "apns-push-type": "alert"}
HELLO = b'{"aps":{"alert":"\xe4\xbd\xa0\xe5\xa5\xbd"}}'


class Took:
    """What a stand-in shows of what it took."""

    def __init__(self) -> None:
        self._watchers: dict[str, asyncio.Queue[ReceivedPush]] = {}
        self.changed = asyncio.Event()

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
            self.changed.set()

    @property
    def tokens(self) -> list[str]:
        return list(self._watchers)

    def take(self, token: str, payload: bytes = HELLO) -> None:
        self._watchers[token.lower()].put_nowait(ReceivedPush(token, HEADERS, payload))


class Phones:
    """`carillon device run --platform ios` as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, data: Path, url: str, *options: str, addresses: str = "") -> "Phones":
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
        async with asyncio.timeout(BOUND_S):
            return (await self.process.stdout.readline()).decode()

    async def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.line())
        return event

    async def end(self) -> tuple[int, str, str]:
        async with asyncio.timeout(BOUND_S):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def served(simulator: AcceptedPushes | None, place: Path) -> AsyncIterator[None]:
    server = serve([f"unix:{place}"])
    add_VirtualPhonesServiceServicer_to_server(VirtualPhonesServicer(simulator), server)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@pytest.fixture
async def took(tmp_path: Path) -> AsyncIterator[Took]:
    took = Took()
    async with served(took, tmp_path / "carillon.sock"):
        yield took


@pytest.fixture
async def ios_app(installation: EdgeInstallation) -> App:
    return await installation.app(PLATFORM_IOS)


def door(installation: EdgeInstallation) -> str:
    return f"{installation.http.base_url}/device/v1"


async def opens(installation: EdgeInstallation) -> list[str]:
    """The tokens that reported an app open."""
    starts = {Partition(SESSIONS.name, number): 0 for number in range(PARTITIONS)}
    facts: list[SessionFact] = [decode(record) for record in (await installation.log.select(starts, 10_000)).records]
    events = [event for fact in facts for event in fact.batch.events]
    return [event.token for event in events if event.kind == SESSION_EVENT_KIND_APP_OPENED]


async def test_it_registers_and_prints_what_arrives(
    installation: EdgeInstallation,
    ios_app: App,
    took: Took,
    tmp_path: Path,
) -> None:
    options = ["--alias", "anna", "--tag", "5", "--tag", "-7", "--stag", "news", "--attribute", "brand=Acme", "--json"]
    phone = await Phones.start(tmp_path, door(installation), "--appkey", ios_app.appkey, "--token", TOKEN, *options)
    printed = [await phone.event() for _ in range(4)]
    assert [(each["device"], each["type"]) for each in printed] == [(1, "welcome"), (1, "ok"), (1, "ok"), (1, "ok")]
    assert (printed[0]["token"], printed[0]["new"]) == (TOKEN, True)
    assert [each["request"] for each in printed[1:]] == ["set_alias", "add_tags", "add_stags"]
    assert took.tokens == [TOKEN.lower()]

    took.take(TOKEN.lower())
    push = await phone.event()
    assert (push["type"], push["device"]) == ("push", 1)
    assert push["payload"] == {"aps": {"alert": "你好"}}
    assert push["headers"] == HEADERS
    phone.process.send_signal(signal.SIGINT)
    assert await phone.end() == (0, "", "")
    async with asyncio.timeout(BOUND_S):
        await took.changed.wait()
    assert (took.tokens, await opens(installation)) == ([], [])


async def test_many_have_made_up_tokens_and_open_the_app_when_told_to(
    installation: EdgeInstallation,
    ios_app: App,
    took: Took,
    tmp_path: Path,
) -> None:
    phones = await Phones.start(
        tmp_path, door(installation), "--appkey", ios_app.appkey, "--count", "3", "--opens", "--json"
    )
    welcomes = [await phones.event() for _ in range(3)]
    tokens = {each["device"]: each["token"] for each in welcomes}
    assert sorted(tokens) == [1, 2, 3]
    assert sorted(took.tokens) == sorted(tokens.values())
    assert all(len(bytes.fromhex(token)) == 32 for token in tokens.values())
    took.take(tokens[2])
    push, answer = await phones.event(), await phones.event()
    assert [(each["device"], each["type"]) for each in (push, answer)] == [(2, "push"), (2, "ok")]
    assert await opens(installation) == [tokens[2]]
    phones.process.send_signal(signal.SIGTERM)
    assert (await phones.end())[0] == 0


async def test_people_read_lines_without_the_key(
    installation: EdgeInstallation,
    ios_app: App,
    took: Took,
    tmp_path: Path,
) -> None:
    phone = await Phones.start(tmp_path, door(installation), "--appkey", ios_app.appkey, "--token", TOKEN)
    welcome = await phone.line()
    assert "welcome" in welcome
    assert "key=" not in welcome
    took.take(TOKEN)
    assert "你好" in await phone.line()
    phone.process.kill()
    await phone.end()


async def test_it_watches_every_instance_of_delivery(
    installation: EdgeInstallation,
    ios_app: App,
    tmp_path: Path,
) -> None:
    first, second = Took(), Took()
    places = [tmp_path / "first.sock", tmp_path / "second.sock"]
    async with served(first, places[0]), served(second, places[1]):
        phone = await Phones.start(
            tmp_path, door(installation), "--appkey", ios_app.appkey, "--token", TOKEN, "--json",
            addresses=",".join(f"unix:{place}" for place in places),
        )  # fmt: skip
        assert (await phone.event())["type"] == "welcome"
        for took in (first, second):
            took.take(TOKEN)
            assert (await phone.event())["type"] == "push"
        phone.process.kill()
        await phone.end()


async def test_it_ends_with_1_and_says_why(
    installation: EdgeInstallation,
    ios_app: App,
    took: Took,
    tmp_path: Path,
) -> None:
    own, url = ("--appkey", ios_app.appkey), door(installation)
    for there, options, told in (
        (url, ("--appkey", "1999999999"), "the device was refused: unauthorized"),
        ("http://127.0.0.1:1/device/v1", own, "no answer from http://127.0.0.1:1"),
        (f"{installation.http.base_url}/nothing", own, "answered HTTP 404, and no frame"),
    ):
        code, _, err = await (await Phones.start(tmp_path, there, *options)).end()
        assert (code, told in err) == (1, True), err
    (tmp_path / "elsewhere").mkdir()
    code, _, err = await (await Phones.start(tmp_path / "elsewhere", url, *own)).end()
    assert (code, "Start `carillon up` first" in err) == (1, True), err


async def test_where_pushes_go_to_apple_it_says_so(
    installation: EdgeInstallation,
    ios_app: App,
    tmp_path: Path,
) -> None:
    async with served(None, tmp_path / "carillon.sock"):
        code, out, err = await (await Phones.start(tmp_path, door(installation), "--appkey", ios_app.appkey)).end()
    assert (code, out, "CARILLON_APNS_URL" in err) == (1, "", True), err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--token", TOKEN, "--count", "2"), "--token names one device"),
        (("--state", "/tmp"), "--state goes with --platform android"),
        (("--ca", __file__), "--ca goes with --platform android"),
        (("--platform", "android", "--opens"), "--opens goes with --platform ios"),
        (("--platform", "android", "--token", TOKEN), "--token goes with --platform ios"),
    ],
)
async def test_options_of_the_other_platform_are_refused(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    code, _, err = await (await Phones.start(tmp_path, "http://127.0.0.1:1", "--appkey", "1", *options)).end()
    assert (code, told in err) == (2, True), err
