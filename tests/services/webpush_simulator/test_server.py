"""The simulator of a push service: what it accepts and refuses, scripts, storage; other libraries as its senders."""

import base64
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from py_vapid import Vapid02
from pywebpush import WebPusher

from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.delivery.channels.webpush.encryption import MAX_BODY_BYTES, Subscription, max_plaintext_bytes
from services.delivery.channels.webpush.request import SMALL_BODY_BYTES, WebPushRequest, urgency, web_push_text
from services.delivery.channels.webpush.responses import parse_answer
from services.delivery.channels.webpush.vapid import VapidHeaders
from services.domain.channel_credentials.webpush import WebPushCredentials
from services.domain.push_endpoints import parse_endpoint
from services.process.clock import ManualClock
from services.push_simulator.http1 import CUT
from services.webpush_simulator.server import WebPushSimulator
from services.webpush_simulator.subscriptions import BrowserSubscription, UndecryptableError
from testkit.services import running_services

NOW_MS = 1_800_000_000_000
NOTIFICATION = Message(is_notif=True, content="Hello", android=AndroidStyle(title="News"))


def new_credentials(contact: str = "mailto:push@example.org") -> WebPushCredentials:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    point = key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    return WebPushCredentials(point, contact, pem)


CREDENTIALS = new_credentials()


class Sender:
    """Sends as an app does whose credentials these are, straight to the simulator's handler."""

    def __init__(self, simulator: WebPushSimulator, clock: ManualClock, credentials: WebPushCredentials) -> None:
        self.simulator = simulator
        self.clock = clock
        self.vapid = VapidHeaders(credentials, clock)

    def headers(self, request: WebPushRequest) -> dict[str, str]:
        endpoint = parse_endpoint(request.subscription.endpoint)
        own = request.headers(self.vapid.header(endpoint.origin), self.clock.now_ms())
        return {":method": "POST", ":path": endpoint.target, **dict(own)}

    def request(self, subscription: BrowserSubscription, msgid: int = 7, period_ms: int = 60_000) -> WebPushRequest:
        return request_to(self.simulator.endpoint(subscription), subscription, self.clock.now_ms() + period_ms, msgid)

    def send(
        self, request: WebPushRequest, body: bytes | None = None, changed: Mapping[str, str | None] | None = None
    ) -> tuple[int, str]:
        """Return the status and the reason; `changed`: headers to set, or to leave out."""
        headers: dict[str, str | None] = {**self.headers(request)}
        headers |= changed or {}
        fields = [(name, value) for name, value in headers.items() if value is not None]
        reply = self.simulator.reply_to(fields, request.body() if body is None else body)
        answer = parse_answer(reply.status, dict(reply.headers), reply.body, NOW_MS)
        return answer.status, answer.name


def request_to(endpoint: str, browser: BrowserSubscription, expires_ms: int, msgid: int = 7) -> WebPushRequest:
    text = web_push_text(NOTIFICATION, expires_ms)
    small = web_push_text(NOTIFICATION, expires_ms, SMALL_BODY_BYTES)
    subscription = Subscription(endpoint, browser.p256dh, browser.auth)
    return WebPushRequest(subscription, msgid, text.push, small.push, expires_ms, urgency(NOTIFICATION))


@pytest.fixture
async def sender() -> Sender:
    clock = ManualClock(NOW_MS)
    return Sender(WebPushSimulator(clock, port=8443), clock, CREDENTIALS)


async def test_a_message_is_accepted_and_decrypted(sender: Sender) -> None:
    browser = sender.simulator.subscribe("a", CREDENTIALS.public_key_text)
    request = sender.request(browser)
    assert sender.send(request) == (201, "")
    (got,) = sender.simulator.received
    assert got.plaintext == request.text.text(7)
    assert (got.message.ttl_s, got.message.urgency, got.message.topic) == (60, "high", "carillon-7")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"ttl": None}, (400, "errno 111")),
        ({"ttl": "-1"}, (400, "errno 114")),
        ({"ttl": "soon"}, (400, "errno 114")),
        ({"topic": "a" * 33}, (400, "errno 113")),
        ({"topic": "a b"}, (400, "errno 113")),
        ({"topic": ""}, (400, "errno 113")),
        ({"topic": None}, (201, "")),
        ({"urgency": "urgent"}, (400, "HTTP 400")),
        ({"content-encoding": "aesgcm"}, (400, "errno 110")),
        ({"content-encoding": None}, (400, "errno 110")),
        ({"authorization": None}, (401, "errno 109")),
        ({"authorization": "bearer x"}, (401, "errno 109")),
        ({"authorization": "vapid t=x.y.z, k=AA"}, (401, "errno 109")),
        ({":path": "/wpush/v2/other"}, (404, "errno 102")),
        ({":path": "/"}, (404, "errno 102")),
        ({":method": "PUT"}, (405, "HTTP 405")),
    ],
)
async def test_requests_that_are_refused(
    sender: Sender, changed: dict[str, str | None], expected: tuple[int, str]
) -> None:
    browser = sender.simulator.subscribe("a", CREDENTIALS.public_key_text)
    assert sender.send(sender.request(browser), changed=changed) == expected
    assert len(sender.simulator.received) == (expected[0] == 201)


async def test_bodies_that_are_too_long_or_cannot_be_decrypted(sender: Sender) -> None:
    browser = sender.simulator.subscribe("a", CREDENTIALS.public_key_text)
    request = sender.request(browser)
    assert sender.send(request, bytes(MAX_BODY_BYTES + 1)) == (413, "errno 104")
    wrong = bytearray(request.body())
    wrong[-1] ^= 1
    assert sender.send(request, bytes(wrong)) == (201, "")
    assert sender.simulator.received[-1].plaintext is None
    for body in (b"x", bytes(500), request.body()[:-1], request.body() + b"x"):
        with pytest.raises(UndecryptableError):
            browser.decrypt(body)


async def test_tokens_that_are_refused(sender: Sender) -> None:
    simulator, clock = sender.simulator, sender.clock
    browser = simulator.subscribe("a", CREDENTIALS.public_key_text)
    request = sender.request(browser, period_ms=10**9)
    other = Sender(simulator, clock, new_credentials())
    assert other.send(request) == (401, "errno 109")
    own = sender.headers(request)["authorization"]
    forged = f"vapid t={sender.vapid.header('https://other.example').split(' ')[1][2:]} k={CREDENTIALS.public_key_text}"
    assert sender.send(request, changed={"authorization": forged}) == (401, "errno 109")
    stolen = other.headers(request)["authorization"].partition(" k=")[0] + f" k={CREDENTIALS.public_key_text}"
    assert sender.send(request, changed={"authorization": stolen}) == (401, "errno 109")
    no_contact = WebPushCredentials(CREDENTIALS.public_key, "push@example.org", CREDENTIALS.key_pem)
    assert Sender(simulator, clock, no_contact).send(request) == (403, "BadJwtToken")
    assert sender.send(request, changed={"authorization": own}) == (201, "")
    clock.move(13 * 3600)
    assert sender.send(request, changed={"authorization": own}) == (401, "errno 109")
    assert sender.send(request) == (201, "")


async def test_the_token_of_a_subscription_scripts_its_answers(sender: Sender) -> None:
    expected = {
        "410-103.x": (410, "errno 103"),
        "403-BadJwtToken.x": (403, "BadJwtToken"),
        "500.x": (500, "HTTP 500"),
        "410.x": (410, "HTTP 410"),
    }
    for token, answer in expected.items():
        browser = sender.simulator.subscribe(token, CREDENTIALS.public_key_text)
        assert sender.send(sender.request(browser)) == answer
    once = sender.simulator.subscribe("once-429.x", CREDENTIALS.public_key_text)
    assert [sender.send(sender.request(once))[0] for _ in range(2)] == [429, 201]
    cut = sender.simulator.subscribe("cut.x", CREDENTIALS.public_key_text)
    request = sender.request(cut)
    headers = [*sender.headers(request).items()]
    assert sender.simulator.reply_to(headers, request.body()).fault == CUT


async def test_a_subscription_that_has_ended(sender: Sender) -> None:
    browser = sender.simulator.subscribe("a", CREDENTIALS.public_key_text)
    sender.simulator.unsubscribe("a")
    assert sender.send(sender.request(browser)) == (410, "errno 103")


async def test_an_offline_browser_gets_the_latest_message_of_each_topic(sender: Sender) -> None:
    simulator = sender.simulator
    browser = simulator.subscribe("a", CREDENTIALS.public_key_text)
    simulator.go_offline("a")
    for msgid in (1, 2, 1):
        sender.send(sender.request(browser, msgid))
    sender.send(sender.request(browser, 3, period_ms=0))
    assert not simulator.received
    simulator.come_back("a")
    assert [got.message.topic for got in simulator.received] == ["carillon-1", "carillon-2"]


@pytest.fixture
async def running() -> AsyncIterator[WebPushSimulator]:
    simulator = WebPushSimulator(ManualClock(NOW_MS))
    async with running_services([simulator]):
        yield simulator


async def test_senders_that_others_wrote_are_understood(running: WebPushSimulator) -> None:
    """By HTTP/1.1, as ours: the body of pywebpush with the token of py-vapid, and both of ours."""
    key = Vapid02()
    key.generate_keys()
    point = key.public_key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    theirs = running.subscribe("theirs", base64.urlsafe_b64encode(point).rstrip(b"=").decode())
    signed = key.sign({"sub": "mailto:push@example.org", "aud": running.url, "exp": NOW_MS // 1000 + 3600})
    plaintext = b"\x00 and zeros at the end \x00\x00"
    encoded = WebPusher(theirs.to_json(running.endpoint(theirs))).encode(plaintext, "aes128gcm")["body"]
    ours = running.subscribe("ours", CREDENTIALS.public_key_text)
    own = Sender(running, ManualClock(NOW_MS), CREDENTIALS)
    request = own.request(ours)
    own_headers = {name: value for name, value in own.headers(request).items() if not name.startswith(":")}
    async with httpx.AsyncClient() as client:
        headers = {"TTL": "60", "Content-Encoding": "aes128gcm", **signed}
        by_them = await client.post(running.endpoint(theirs), content=encoded, headers=headers)
        by_us = await client.post(running.endpoint(ours), content=request.body(), headers=own_headers)
    assert (by_them.status_code, by_us.status_code) == (201, 201), (by_them.text, by_us.text)
    assert [got.plaintext for got in running.received] == [plaintext, request.text.text(7)]
    assert by_us.headers["location"].startswith(running.url)


def test_the_longest_message_of_another_library_is_read() -> None:
    browser = BrowserSubscription.make("a", "")
    plaintext = bytes(range(256)) * 15 + b"x" * (max_plaintext_bytes() - 256 * 15)
    encoded = WebPusher(browser.to_json("https://push.example.org/a")).encode(plaintext, "aes128gcm")["body"]
    assert browser.decrypt(encoded) == plaintext
