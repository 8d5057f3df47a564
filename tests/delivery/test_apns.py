"""The sender and Apple's stand-in, over real TLS and HTTP/2."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import httpx
import pytest

from protos.push.v1.push_pb2 import AndroidStyle, IosStyle, Message
from services.delivery.apns import ApnsPush, ApnsResult, ApnsSender, payload
from services.delivery.apple import MAX_PAYLOAD_BYTES, RefusedError, Request, checked
from services.delivery.certificate import SelfSigned
from services.delivery.standin import ApnsStandIn
from services.runtime.clock import ManualClock, SystemClock
from services.runtime.runner import Service

NOW_MS = 1_800_000_000_000
TOKEN = "ab" * 32
DEAD = "dead" + "0" * 60
TOPIC = "org.example.app"
Running = TypeVar("Running", bound=Service)


@contextlib.asynccontextmanager
async def running(service: Running) -> AsyncIterator[Running]:
    ready = asyncio.Event()
    task = asyncio.create_task(service.run(ready))
    await asyncio.wait_for(ready.wait(), 10)
    try:
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def standin() -> AsyncIterator[ApnsStandIn]:
    async with running(ApnsStandIn(SystemClock())) as standin:
        yield standin


@pytest.fixture
async def sender(standin: ApnsStandIn) -> AsyncIterator[ApnsSender]:
    sender = ApnsSender(standin.url, standin.authority)
    yield sender
    await sender.close()


def one(token: str = TOKEN, **changes: Any) -> ApnsPush:
    given = {"topic": TOPIC, "payload": b'{"aps":{"alert":"hi"}}', "msgid": 7, "expires_ms": 1_900_000_000_999}
    return ApnsPush(token=token, **{**given, **changes})


async def test_a_push_arrives_with_what_apple_wants_to_know(standin: ApnsStandIn, sender: ApnsSender) -> None:
    assert await sender.send([one(collapse_id="c")]) == [ApnsResult(200)]

    (received,) = standin.received
    assert received.token == TOKEN
    assert received.body == {"aps": {"alert": "hi"}}
    apns_id = received.headers["apns-id"]
    assert received.headers == {
        "apns-id": apns_id,
        "apns-topic": TOPIC,
        "apns-push-type": "alert",
        "apns-priority": "10",
        "apns-expiration": "1900000000",
        "apns-collapse-id": "c",
    }


async def test_a_repeat_has_the_same_id_and_another_message_or_device_has_not(
    standin: ApnsStandIn, sender: ApnsSender
) -> None:
    await sender.send([one(), one(), one(msgid=8), one("cd" * 32)])
    ids = [received.headers["apns-id"] for received in standin.received]
    assert len(set(ids)) == 3


async def test_results_stand_in_the_order_of_the_batch(standin: ApnsStandIn, sender: ApnsSender) -> None:
    batch = [one(), one("nothex"), one(topic=""), one(payload=b"x" * (MAX_PAYLOAD_BYTES + 1)), one(payload=b""), one()]
    assert await sender.send(batch) == [
        ApnsResult(200),
        ApnsResult(400, "BadDeviceToken"),
        ApnsResult(400, "MissingTopic"),
        ApnsResult(413, "PayloadTooLarge"),
        ApnsResult(400, "PayloadEmpty"),
        ApnsResult(200),
    ]
    assert standin.refused == {"BadDeviceToken": 1, "MissingTopic": 1, "PayloadTooLarge": 1, "PayloadEmpty": 1}


async def test_a_dead_token_is_told_with_its_time() -> None:
    clock = ManualClock(NOW_MS)
    async with running(ApnsStandIn(clock)) as standin:
        sender = ApnsSender(standin.url, standin.authority)
        assert await sender.send([one(DEAD)]) == [ApnsResult(410, "Unregistered", clock.now_ms())]
        await sender.close()
    assert not standin.received


async def test_a_batch_shares_one_connection_and_outgrows_every_window(
    standin: ApnsStandIn, sender: ApnsSender
) -> None:
    """600 payloads of 4096 bytes and 600 refusals are many times the 64 KiB that one window holds at first."""
    full = b'{"aps":{"alert":"' + b"x" * (MAX_PAYLOAD_BYTES - 20) + b'"}}'
    assert len(full) == MAX_PAYLOAD_BYTES
    results = await sender.send([one(payload=full, msgid=n) for n in range(600)] + [one("nothex")] * 600)
    assert [result.status for result in results] == [200] * 600 + [400] * 600
    async with asyncio.timeout(5):
        await standin.wait_for(600)
    assert len(standin.connections) == 1


async def test_an_answer_that_does_not_come_in_time_is_unknown() -> None:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = ApnsSender(f"https://127.0.0.1:{silent.getsockname()[1]}", deadline_s=0.05)
        (result,) = await sender.send([one()])
        await sender.close()
    assert result == ApnsResult(0, "no answer in time")
    assert result.unknown


async def test_a_lost_connection_is_unknown_and_the_next_push_makes_a_new_one(standin: ApnsStandIn) -> None:
    async with running(_Cutter(standin)) as cutter:
        through = ApnsSender(f"https://127.0.0.1:{cutter.port}", standin.authority)
        assert [result.status for result in await through.send([one()])] == [200]
        cutter.cut = True
        (lost,) = await through.send([one(msgid=8)])
        assert lost.unknown
        assert "connection lost" in lost.reason
        cutter.cut = False
        assert [result.status for result in await through.send([one(msgid=8)])] == [200]
        await through.close()


async def test_a_sender_trusts_only_its_authority(standin: ApnsStandIn) -> None:
    for authority in (None, SelfSigned.make("127.0.0.1").certificate_pem):
        sender = ApnsSender(standin.url, authority)
        (result,) = await sender.send([one()])
        assert result.unknown
        assert "CERTIFICATE_VERIFY_FAILED" in result.reason
        await sender.close()
    assert not standin.received


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", f"/3/device/{TOKEN}", 405, "MethodNotAllowed"),
        ("POST", "/3/devices", 404, "BadPath"),
        ("POST", "/3/device/", 400, "MissingDeviceToken"),
        ("POST", f"/3/device/{TOKEN}/more", 404, "BadPath"),
    ],
)
async def test_what_is_no_push_is_refused_with_apples_reason_and_an_id(
    standin: ApnsStandIn, method: str, path: str, status: int, reason: str
) -> None:
    trust = ssl.create_default_context(cadata=standin.authority)
    async with httpx.AsyncClient(http1=False, http2=True, verify=trust, trust_env=False) as client:
        response = await client.request(method, standin.url + path, content=b"{}", headers={"apns-topic": TOPIC})
    assert (response.status_code, response.json()) == (status, {"reason": reason})
    assert response.http_version == "HTTP/2"
    assert len(response.headers["apns-id"]) == 36


async def test_bytes_that_are_not_http2_end_their_connection_only(standin: ApnsStandIn, sender: ApnsSender) -> None:
    trust = ssl.create_default_context(cadata=standin.authority)
    trust.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(*_place(standin), ssl=trust)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    async with asyncio.timeout(5):
        await reader.read()
    writer.close()
    assert await sender.send([one()]) == [ApnsResult(200)]


@pytest.mark.parametrize(
    ("header", "value", "reason"),
    [
        ("apns-id", "7", "BadMessageId"),
        ("apns-push-type", "shout", "InvalidPushType"),
        ("apns-priority", "7", "BadPriority"),
        ("apns-expiration", "soon", "BadExpirationDate"),
        ("apns-collapse-id", "é" * 33, "BadCollapseId"),
    ],
)
def test_headers_are_checked(header: str, value: str, reason: str) -> None:
    headers = {":method": "POST", ":path": f"/3/device/{TOKEN}", "apns-topic": TOPIC, header: value}
    with pytest.raises(RefusedError, match=reason):
        checked(Request(list(headers.items()), bytearray(b"{}")), NOW_MS)


def test_a_header_given_twice_and_a_hurried_background_push_are_refused() -> None:
    base = [(":method", "POST"), (":path", f"/3/device/{TOKEN}"), ("apns-topic", TOPIC)]
    for more, reason in (
        ([("apns-topic", TOPIC)], "DuplicateHeaders"),
        ([("apns-push-type", "background"), ("apns-priority", "10")], "BadPriority"),
    ):
        with pytest.raises(RefusedError, match=reason):
            checked(Request(base + more, bytearray(b"{}")), NOW_MS)


def ios(content: str = "hello", is_notif: bool = True, extra: str | None = None, **style: Any) -> Message:
    return Message(is_notif=is_notif, content=content, extra=extra, ios=IosStyle(**style))


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (ios(), {"aps": {"alert": "hello"}}),
        (ios('你好 \u2028 "q"'), {"aps": {"alert": '你好 \u2028 "q"'}}),
        (ios(title="T"), {"aps": {"alert": {"title": "T", "body": "hello"}}}),
        (ios(badge=0), {"aps": {"alert": "hello", "badge": 0}}),
        (ios(badge=-1), {"aps": {"alert": "hello"}}),
        (ios(sound="bell"), {"aps": {"alert": "hello", "sound": "bell"}}),
        (ios(sound=""), {"aps": {"alert": "hello"}}),
        (ios(content_available=True), {"aps": {"alert": "hello", "content-available": 1}}),
        (ios(content_available=False), {"aps": {"alert": "hello"}}),
        (ios(category="c"), {"aps": {"alert": "hello", "category": "c"}}),
        (ios(extra='{"k":1}'), {"aps": {"alert": "hello"}, "extra": '{"k":1}'}),
        (ios(extra=""), {"aps": {"alert": "hello"}, "extra": ""}),
        (ios('{"loc-key":"K"}', content_is_json=True), {"aps": {"alert": {"loc-key": "K"}}}),
        (ios('{"loc-key":"K"}'), {"aps": {"alert": '{"loc-key":"K"}'}}),
        (ios("[1]", content_is_json=True), {"aps": {"alert": "[1]"}}),
        (ios("{", content_is_json=True), {"aps": {"alert": "{"}}),
        (ios(is_notif=False, sound="bell", badge=3), {"aps": {"content-available": 1}, "content": "hello"}),
        (
            ios('{"a":1}', is_notif=False, extra="x", content_is_json=True),
            {"aps": {"content-available": 1}, "content": {"a": 1}, "extra": "x"},
        ),
        (Message(is_notif=True, content="plain", android=AndroidStyle(title="T")), {"aps": {"alert": "plain"}}),
    ],
)
def test_payloads(message: Message, body: object) -> None:
    encoded = payload(message)
    assert json.loads(encoded) == body
    assert len(encoded) <= len(json.dumps(body, ensure_ascii=False).encode())


def _place(standin: ApnsStandIn) -> tuple[str, int]:
    url = httpx.URL(standin.url)
    assert url.port
    return url.host, url.port


class _Cutter:
    """Passes connections on to the stand-in; while `cut`, it resets each one as soon as its client says something."""

    name = "cutter"

    def __init__(self, standin: ApnsStandIn) -> None:
        self._target = _place(standin)
        self.cut = False
        self.port = 0

    async def run(self, ready: asyncio.Event) -> None:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await asyncio.Event().wait()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        back = asyncio.create_task(self._copy(onward_reader, writer))
        await self._copy(reader, onward_writer, cutting=writer)
        back.cancel()
        onward_writer.close()
        writer.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cutting: asyncio.StreamWriter | None = None
    ) -> None:
        while data := await reader.read(65536):
            if cutting and self.cut:
                cutting.transport.abort()
                return
            writer.write(data)
