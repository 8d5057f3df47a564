"""The Swift SDK as an iPhone runs it: registration, recovery, requests and reports, to a scripted endpoint."""

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from carillon.commands.role_calls import SOCKET_NAME
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.delivery.v1.virtual_pb2 import WatchRequest
from protos.delivery.v1.virtual_pb2_grpc import VirtualPhonesServiceStub
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from services.net.rpc.channel import connect
from testkit.certificates import Authority
from testkit.edge.http_device import pushed_codes
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.edge.scripted_endpoint import ScriptedEndpoint, ScriptedRequest
from testkit.installation.app_server import AppServer
from testkit.installation.processes import Installation
from testkit.swift_sdk import MARKS, SOURCES, swift_sdk
from testkit.waiting import until
from tests.contract.sdk.driven_device import BOUND_S, DrivenDevice, Json, StartDevice, vectors
from tests.contract.sdk.test_requests import REQUESTS

pytestmark = list(MARKS)

TOKEN = "0a" * 32
IDENTITY = {"appkey": "1000000001", "token": TOKEN, "key": "k-1"}
GONE = "input error: no such device"


@pytest.fixture
async def start(endpoint: ScriptedEndpoint, tmp_path: Path) -> AsyncIterator[StartDevice]:
    devices: list[DrivenDevice] = []

    async def start(url: str | None = None, ca: str | None = None, **options: object) -> DrivenDevice:
        state = str(tmp_path / "state.json")
        device = await DrivenDevice.start("swift", url or endpoint.url, state, ca, {"token": TOKEN, **options})
        devices.append(device)
        return device

    yield start
    for device in devices:
        await device.kill()


def welcome(request: ScriptedRequest, key: str = "k-1", **fields: Any) -> None:
    token = request.frame["token"]
    request.answer({"type": "welcome", "token": token, "key": key, "heartbeat": 240, "new": True, **fields})


def possession(request: ScriptedRequest) -> None:
    request.refuse(401, "unauthorized: this token is registered", reason="possession")


async def registered(start: StartDevice, endpoint: ScriptedEndpoint, **options: object) -> DrivenDevice:
    device = await start(**options)
    welcome(await endpoint.next("hello"))
    await device.event("welcome")
    return device


def named(hello: ScriptedRequest) -> Json:
    """Return the fields of a hello that name the device."""
    return {name: value for name, value in hello.frame.items() if name in ("appkey", "token", "key", "code")}


# Registration.


async def test_it_says_hello_at_each_start_with_the_key_that_it_was_given(
    start: StartDevice, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    device = await start(attributes={"channel": "store", "model": "iPhone15,2"})
    hello = await endpoint.next("hello")
    assert named(hello) == {"appkey": "1000000001", "token": TOKEN}
    known = hello.frame["device"]
    assert (known["channel"], known["model"], known["brand"]) == ("store", "iPhone15,2", "Apple")
    welcome(hello, ignored=["device.model: expected `str` of length <= 100"])
    told = await device.event("welcome")
    assert (told["new"], told["ignored"]) == (True, ["device.model: expected `str` of length <= 100"])
    assert json.loads((tmp_path / "state.json").read_text()) == IDENTITY
    await device.close()
    device = await start()
    hello = await endpoint.next("hello")
    assert named(hello) == IDENTITY
    welcome(hello, new=False)
    assert (await device.event("welcome"))["new"] is False
    device.command(do="token", token=TOKEN)
    assert named(await endpoint.next("hello")) == IDENTITY


async def test_another_token_of_apple_is_another_device(start: StartDevice, endpoint: ScriptedEndpoint) -> None:
    device = await registered(start, endpoint)
    device.command(do="token", token="0b" * 32)
    hello = await endpoint.next("hello")
    assert named(hello) == {"appkey": "1000000001", "token": "0b" * 32}, "the key is of the other token"
    welcome(hello, "k-2")
    assert (await device.event("welcome"))["new"] is True
    device.call("clear_alias")
    request = await endpoint.next("clear_alias")
    assert (request.frame["token"], request.frame["key"]) == ("0b" * 32, "k-2")


async def test_a_build_for_the_sandbox_is_a_device_of_the_sandboxs_app(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    await (await registered(start, endpoint)).close()
    await start(sandbox=True)
    assert named(await endpoint.next("hello")) == {"appkey": "1000000002", "token": TOKEN}


async def test_a_lost_key_is_replaced_by_the_code_of_a_silent_push(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device = await start()
    possession(await endpoint.next("hello"))
    await device.event("awaits_code")
    device.command(do="code", code="c-1")
    hello = await endpoint.next("hello")
    assert named(hello) == {"appkey": "1000000001", "token": TOKEN, "code": "c-1"}
    hello.drop()
    retry_ms = await device.retry_ms()
    await device.next("returned")
    device.elapse(retry_ms)
    hello = await endpoint.next("hello")
    assert hello.frame["code"] == "c-1", "it may not have reached the service"
    welcome(hello, "k-2", new=False)
    await device.event("welcome")
    device.call("clear_alias")
    assert (await endpoint.next("clear_alias")).frame["key"] == "k-2"


async def test_a_code_that_comes_before_apples_token_waits_for_it(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device = await start(token=None)
    device.command(do="code", code="c-1")
    await device.next("returned")
    assert endpoint.requests.empty()
    device.command(do="token", token=TOKEN)
    assert (await endpoint.next("hello")).frame["code"] == "c-1"


async def test_without_a_code_within_a_minute_it_asks_for_another_one_three_times_in_all(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device = await start()
    for attempt in range(3):
        hello = await endpoint.next("hello")
        assert "code" not in hello.frame
        possession(hello)
        await device.event("awaits_code")
        if attempt < 2:
            device.elapse(65_000)
    await device.move(10**7)
    device.call("get_device")
    assert await device.next("raised") == ["unavailable", None]
    assert endpoint.requests.empty()


async def test_a_key_that_the_service_does_not_know_is_given_up(start: StartDevice, endpoint: ScriptedEndpoint) -> None:
    await (await registered(start, endpoint)).close()
    device = await start()
    (await endpoint.next("hello")).refuse(401, "unauthorized")
    hello = await endpoint.next("hello")
    assert "key" not in hello.frame
    welcome(hello, "k-2")
    assert (await device.event("welcome"))["new"] is True


@pytest.mark.parametrize(
    ("code", "fields"), [(401, {"reason": "revoked"}), (400, {}), (401, {})], ids=["revoked", "wrong", "no such app"]
)
async def test_a_hello_that_is_refused_waits_for_the_next_start(
    start: StartDevice, endpoint: ScriptedEndpoint, code: int, fields: dict[str, Any]
) -> None:
    device = await start()
    (await endpoint.next("hello")).refuse(code, "no", **fields)
    assert await device.event("refused") == {"type": "refused", "code": code, "reason": fields.get("reason")}
    await device.move(10**7)
    assert endpoint.requests.empty()
    await device.close()
    await start()
    await endpoint.next("hello")


@pytest.mark.parametrize(
    ("code", "retry_after_s", "wait_ms"), [(429, 10, 11_000), (403, None, 1000), (503, None, 1000), (500, None, 1000)]
)
async def test_a_hello_is_repeated_when_the_service_says_later(
    start: StartDevice, endpoint: ScriptedEndpoint, code: int, retry_after_s: int | None, wait_ms: int
) -> None:
    device = await start()
    (await endpoint.next("hello")).refuse(code, "later", retry_after_s=retry_after_s)
    assert await device.retry_ms() == wait_ms
    device.elapse(wait_ms)
    welcome(await endpoint.next("hello"))
    await device.event("welcome")


@pytest.mark.parametrize("vector", vectors("delays")["hello"], ids=lambda vector: str(vector["chance"]))
async def test_delays_double_up_to_five_minutes(
    start: StartDevice, endpoint: ScriptedEndpoint, vector: dict[str, Any]
) -> None:
    device = await start(chance=vector["chance"])
    waits = []
    for attempt in range(10):
        hello = await endpoint.next("hello")
        if attempt == 1:
            device.elapse(10_000)
        elif attempt == 2:
            hello.answer("<html>Bad Gateway</html>", 502)
        elif attempt == 3:
            hello.answer({"type": "welcome", "token": 5})
        else:
            hello.drop()
        waits.append(await device.retry_ms())
        device.elapse(waits[-1])
    assert waits == vector["retry_ms"]
    welcome(await endpoint.next("hello"))
    await device.event("welcome")


async def test_tls_needs_a_certificate_of_a_trusted_authority_for_the_host(start: StartDevice, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("edge")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    secure = ScriptedEndpoint(context)
    await secure.open()
    stranger = Authority(tmp_path / "stranger")
    of_another_host = secure.url.replace("127.0.0.1", "localhost")
    for url, trusted, why in (
        (secure.url, stranger, "issuer certificate"),
        (of_another_host, authority, "subject name"),
    ):
        device = await start(url, ca=str(trusted.file))
        assert why in (await device.event("disconnected"))["reason"]
    assert secure.requests.empty()
    device = await start(secure.url, ca=str(authority.file))
    welcome(await secure.next("hello"))
    await device.event("welcome")
    await secure.close()


# Requests.


async def test_requests_are_sent_one_after_the_other_and_answered(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device = await registered(start, endpoint)
    requests = [each for each in REQUESTS if "address" not in each[0]]
    for method, arguments, _ in requests:
        device.call(method, *arguments)
    for _, _, frame in requests:
        request = await endpoint.next(str(frame["type"]))
        assert request.frame == {**frame, **IDENTITY}
        assert endpoint.requests.empty()
        request.ok()
        await device.next("returned")
    device.call("get_device")
    known = {"alias": None, "tags": [1, -2], "stags": ["news"], "device": {"brand": "Apple"}}
    (await endpoint.next("get_device")).ok(**known)
    assert await device.next("returned") == known


async def test_requests_fail_in_three_ways(start: StartDevice, endpoint: ScriptedEndpoint) -> None:
    device = await start(token=None)
    device.call("clear_alias")
    assert await device.next("raised") == ["unavailable", None], "it is not registered yet"
    await device.close()
    device = await registered(start, endpoint)
    device.call("set_alias", "")
    (await endpoint.next("set_alias")).refuse(400, "input error: alias must have 1 to 40 bytes, but one has 0")
    assert await device.next("raised") == ["refused", 400]
    device.call("clear_alias")
    await endpoint.next("clear_alias")
    device.elapse(10_000)
    assert await device.next("raised") == ["deadline", None]
    device.call("clear_alias")
    (await endpoint.next("clear_alias")).drop()
    assert await device.next("raised") == ["unavailable", None]
    device.call("clear_alias")
    (await endpoint.next("clear_alias")).refuse(429, "too many", retry_after_s=3)
    assert await device.next("raised") == ["refused", 429]


async def test_a_request_of_a_removed_device_is_repeated_once_the_device_is_back(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device = await registered(start, endpoint)
    device.call("set_alias", "alice")
    (await endpoint.next("set_alias")).refuse(400, GONE)
    hello = await endpoint.next("hello")
    assert named(hello) == IDENTITY
    welcome(hello)
    assert (await device.event("welcome"))["new"] is True, "the app sets alias and tags again"
    request = await endpoint.next("set_alias")
    assert request.frame["alias"] == "alice"
    request.ok()
    await device.next("returned")


async def test_a_request_whose_key_is_refused_is_repeated_under_another_key(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device = await registered(start, endpoint)
    device.call("clear_alias")
    (await endpoint.next("clear_alias")).refuse(401, "unauthorized")
    hello = await endpoint.next("hello")
    assert "key" not in hello.frame
    welcome(hello, "k-2")
    await device.event("welcome")
    request = await endpoint.next("clear_alias")
    assert request.frame["key"] == "k-2"
    request.refuse(401, "unauthorized")
    possession(await endpoint.next("hello"))
    await device.event("awaits_code")
    assert await device.next("raised") == ["refused", 401]
    device.command(do="code", code="c-1")
    welcome(await endpoint.next("hello"), "k-3", new=False)
    await device.event("welcome")
    await device.next("returned")
    device.call("clear_alias")
    (await endpoint.next("clear_alias")).refuse(401, "unauthorized")
    assert await device.next("raised") == ["refused", 401], "a third hello in a row would change nothing"
    assert endpoint.requests.empty()


@pytest.mark.parametrize("vector", vectors("delays")["proof"], ids=str)
async def test_proofs_are_fetched_again_as_the_shared_vectors_say(
    start: StartDevice, endpoint: ScriptedEndpoint, vector: dict[str, Any]
) -> None:
    device = await registered(start, endpoint, chance=vector["chance"])
    device.call("add_stags", ["user:7"], {"proof": ["one", "two", "three", "four"]})
    for delay_ms in (*vector["delays_ms"], None):
        (await endpoint.next("add_stags")).refuse(vector["code"], "proof: no")
        if delay_ms is not None:
            device.elapse(delay_ms)
    assert await device.next("raised") == ["refused", vector["code"]]


async def test_a_proof_that_is_refused_is_fetched_again_with_growing_delays(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device = await registered(start, endpoint)
    device.call("set_alias", "alice", {"proof": ["expired", "another", "fresh"]})
    for proof, code, delay_ms in (("expired", 401, 4500), ("another", 429, 9000)):
        request = await endpoint.next("set_alias")
        assert request.frame["proof"] == proof
        request.refuse(code, "proof: it has expired")
        device.elapse(delay_ms)
    request = await endpoint.next("set_alias")
    assert request.frame == {"type": "set_alias", "alias": "alice", "proof": "fresh", **IDENTITY}
    request.refuse(401, "proof: it has expired")
    assert await device.next("raised") == ["refused", 401]
    device.call("add_stags", ["user:7"], {"proof": "given"})
    request = await endpoint.next("add_stags")
    assert request.frame["proof"] == "given"
    request.refuse(403, "a proof is missing")
    assert await device.next("raised") == ["refused", 403]


# Reports.


def notification(device: DrivenDevice, event: str, msgid: int) -> None:
    device.command(do="notification", event=event, msgid=msgid)


async def test_reports_survive_the_process_and_wait_for_an_identity(
    start: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device = await start(token=None)
    notification(device, "clicked", 5)
    await device.next("returned")
    device.call("activity", "open")
    await device.next("returned")
    await device.kill()
    device = await start()
    welcome(await endpoint.next("hello"))
    await device.event("welcome")
    reported = await endpoint.next("report")
    assert reported.frame == {"type": "report", "event": "clicked", "msgid": 5, **IDENTITY}
    reported.ok()
    opened = await endpoint.next("activity")
    assert opened.frame == {"type": "activity", "event": "open", **IDENTITY}
    opened.ok()
    notification(device, "received", 6)
    assert (await endpoint.next("ack")).frame["msgids"] == [6]


async def test_reports_pause_as_long_as_the_service_asks(start: StartDevice, endpoint: ScriptedEndpoint) -> None:
    device = await registered(start, endpoint)
    notification(device, "clicked", 5)
    (await endpoint.next("report")).refuse(429, "too many", retry_after_s=7)
    await device.next("returned")
    notification(device, "dismissed", 6)
    await device.next("returned")
    assert endpoint.requests.empty()
    device.elapse(7000)
    for event in ("clicked", "dismissed"):
        reported = await endpoint.next("report")
        assert reported.frame["event"] == event
        reported.ok()


@pytest.mark.parametrize(("code", "desc"), [(401, "unauthorized"), (400, GONE)])
async def test_reports_of_a_device_that_is_refused_are_told_once_it_is_back(
    start: StartDevice, endpoint: ScriptedEndpoint, code: int, desc: str
) -> None:
    device = await registered(start, endpoint)
    notification(device, "clicked", 5)
    for attempt in range(2):
        (await endpoint.next("report")).refuse(code, desc)
        if attempt == 0:
            await device.next("returned")
        hello = await endpoint.next("hello")
        assert ("key" in hello.frame) == (code == 400)
        welcome(hello)
        await device.event("welcome")
    (await endpoint.next("report")).refuse(code, desc)
    device.call("get_device")
    (await endpoint.next("get_device")).ok()
    await device.next("returned")
    notification(device, "dismissed", 5)
    for event in ("clicked", "dismissed"):
        reported = await endpoint.next("report")
        assert reported.frame["event"] == event
        reported.ok()


async def test_a_push_is_read_from_apples_payload_as_the_shared_vectors_say(start: StartDevice) -> None:
    device = await start(token=None)
    for vector in vectors("apple_payloads"):
        device.command(do="read", payload=vector["payload"])
        assert await device.next("returned") == vector["push"], vector["what"]


# With the real service, and as it is built.


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[EdgeInstallation]:
    async with edge_installation(tmp_path, BACKENDS) as installation:
        yield installation


async def test_with_the_real_edge(installation: EdgeInstallation, start: StartDevice, tmp_path: Path) -> None:
    app = await installation.app(PLATFORM_IOS)
    url = f"{installation.http.base_url}/device/v1"
    device = await start(url, appkey=app.appkey)
    assert (await device.event("welcome"))["new"] is True
    for method, arguments in (("set_alias", "alice"), ("add_tags", [7]), ("add_stags", ["news"])):
        device.call(method, arguments)
        await device.next("returned")
    notification(device, "shown", 5)
    await device.next("returned")
    kinds = [kind for *_, kind in installation.reports.rows]
    assert kinds == [OutcomeKind.OUTCOME_KIND_RECEIVED, OutcomeKind.OUTCOME_KIND_SHOWN]
    await device.close()

    (tmp_path / "state.json").unlink()
    device = await start(url, appkey=app.appkey)
    await device.event("awaits_code")
    (code,) = await pushed_codes(installation)
    device.command(do="code", code=code)
    assert (await device.event("welcome"))["new"] is False
    await device.next("returned")
    device.call("get_device")
    known = await device.next("returned")
    assert (known["alias"], known["tags"], known["stags"]) == ("alice", [7], ["news"])
    assert known["device"]["brand"] == "Apple"

    await installation.command(app.appkey, TOKEN, DeviceCommand(remove=RemoveDevice(reason="unregistered")))
    device.call("set_alias", "alice")
    assert (await device.event("welcome"))["new"] is True
    await device.next("returned")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path / "data", None)
    try:
        installation.start()
        yield installation
        installation.stop()
    finally:
        installation.close()


@contextlib.asynccontextmanager
async def payloads_from_apple(service: Installation) -> AsyncIterator[asyncio.Queue[Json]]:
    """Yield the payloads that the simulator of Apple's service takes for the phone, from now on."""
    channel = connect(f"unix:{service.data / SOCKET_NAME}")
    taken: asyncio.Queue[Json] = asyncio.Queue()
    is_watching = asyncio.Event()

    async def request() -> AsyncIterator[WatchRequest]:
        yield WatchRequest(tokens=[TOKEN])
        await asyncio.Event().wait()

    async def watch() -> None:
        async for push in VirtualPhonesServiceStub(channel).Watch(request()):
            if is_watching.is_set():
                taken.put_nowait(json.loads(push.payload))
            is_watching.set()

    watching = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(BOUND_S):
            await is_watching.wait()
        yield taken
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await channel.close()


async def test_from_the_push_to_the_click_in_the_audit(
    service: Installation, start: StartDevice, tmp_path: Path
) -> None:
    app = service.create_app("ios")
    service.carillon("app", "set", app.appkey, "--apns-reports", "on")
    url = f"{service.v2_url}/device/v1"
    server = AppServer(service.v2_url)
    async with payloads_from_apple(service) as payloads, asyncio.timeout(300):
        device = await start(url, appkey=app.appkey)
        await device.event("welcome")
        body = {
            "sendTo": {"appkey": {"ios": app.appkey}, "userScope": 2},
            "msgStyle": {"basic": {"content": "hello", "is_notif": 1}},
        }

        async def pushed() -> Json | None:
            """Push until the service has applied the app's setting."""
            assert (await server.push(body, app.secret_key))["result"] == 0
            payload = await payloads.get()
            return payload if "carillon" in payload else None

        payload = await until(pushed)
        for event in ("shown", "clicked"):
            device.command(do="notification", event=event, payload=payload)
            await device.next("returned")
        await device.close()

        async def audited() -> Json | None:
            """Return the audit once it tells of the click."""
            named = ("audit", "push", str(payload["carillon"]["msgid"]), "--device", TOKEN, "--json")
            said = await asyncio.to_thread(service.carillon, *named, check=False)
            audit: Json = json.loads(said) if said.strip() else {"device": {"timeline": []}}
            return audit if "clicked" in {entry["event"] for entry in audit["device"]["timeline"]} else None

        audit = await until(audited, 120)
        events = {entry["event"] for entry in audit["device"]["timeline"]}
        assert events >= {"sent", "received", "shown", "clicked"}

        (tmp_path / "state.json").unlink()
        device = await start(url, appkey=app.appkey)
        await device.event("awaits_code")
        device.command(do="notification", event="received", payload=await payloads.get())
        assert (await device.event("welcome"))["new"] is False
        await device.next("returned")
        await device.close()
    await server.close()


def test_its_own_tests_pass() -> None:
    log = (swift_sdk().package / "tests.log").read_text()
    assert log.endswith("\nexit code 0\n"), log
    expected = sum(
        len(re.findall(r"func test\w+\(", path.read_text())) for path in (SOURCES / "Tests").rglob("*.swift")
    )
    assert f"Executed {expected} tests, with 0 failures" in log, log


def test_the_types_are_right_with_apples_frameworks_in_the_programs_of_the_page_and_in_the_sample() -> None:
    assert (swift_sdk().package / "types.log").read_text() == ""


def test_an_extension_without_a_configuration_shows_the_notification_as_it_came() -> None:
    assert (swift_sdk().package / "extension.log").read_text() == "shown as it came\n"
