"""Requests as they are written to push services, and the answers of odd ones."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from protos.push.v1.push_pb2 import Message
from services.delivery.channels.health import UnreachableServices
from services.delivery.channels.webpush.encryption import Subscription
from services.delivery.channels.webpush.request import WebPushRequest, urgency, web_push_text
from services.delivery.channels.webpush.responses import ENDPOINT_REFUSED, LOCAL, NO_CONNECTION, UNKNOWN, WebPushAnswer
from services.delivery.channels.webpush.sender import (
    _AT_ONCE,
    _TURNS_A_REQUEST,
    CONNECTIONS,
    PushServices,
    WebPushSender,
)
from services.delivery.channels.webpush.vapid import VapidHeaders
from services.domain.channel_credentials.webpush import WebPushCredentials
from services.domain.endpoint_connections import ReplacedConnector
from services.domain.push_endpoints import AllowedHosts
from services.net.http import client
from services.net.http.client import MAX_ANSWER_BYTES
from services.process.clock import ManualClock
from services.process.metrics import CHANNEL_UNREACHABLE
from services.webpush_simulator.subscriptions import BrowserSubscription
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.webpush_simulator.test_server import new_credentials

NOW_MS = 1_800_000_000_000
ENDPOINT = "https://updates.push.services.mozilla.com/wpush/v2/a"
MESSAGE = Message(is_notif=True, content="Hello")


class RawService:
    """Answers each request with the same bytes, and keeps the requests; `ends`: it closes the connection then."""

    def __init__(self, answer: bytes, *, ends: bool = False) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._answer = answer
        self._ends = ends

    async def before_answer(self) -> None:
        """Return once the next request may be answered."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self.before_answer()
                writer.write(self._answer)
                await writer.drain()
                if self._ends:
                    break
        writer.close()


class HeldService(RawService):
    """Answers as many requests as the test releases."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self._released = asyncio.Semaphore(0)

    def release(self, count: int) -> None:
        for _ in range(count):
            self._released.release()

    async def before_answer(self) -> None:
        await self._released.acquire()


@dataclass
class Pending:
    request: WebPushRequest
    wanted: bool = True
    result: "asyncio.Future[WebPushAnswer | None]" = field(default_factory=asyncio.Future)

    def is_wanted(self) -> bool:
        return self.wanted

    def answered(self, answer: WebPushAnswer) -> None:
        self.result.set_result(answer)

    def skipped(self) -> None:
        self.result.set_result(None)


def pending(endpoint: str = ENDPOINT) -> Pending:
    browser = BrowserSubscription.make("a", "")
    text = web_push_text(MESSAGE, NOW_MS + 60_000).push
    subscription = Subscription(endpoint, browser.p256dh, browser.auth)
    return Pending(WebPushRequest(subscription, 7, text, text, NOW_MS + 60_000, urgency(MESSAGE)))


CREDENTIALS: WebPushCredentials = new_credentials()


@contextlib.asynccontextmanager
async def sender_to(service: RawService) -> AsyncIterator[WebPushSender]:
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    clock = ManualClock(NOW_MS)
    services = PushServices(ReplacedConnector(lambda: address), clock)
    yield WebPushSender(services, VapidHeaders(CREDENTIALS, clock), AllowedHosts(), clock)
    await services.close()
    server.close()


async def answer_of(sender: WebPushSender, request: Pending) -> WebPushAnswer | None:
    sender.submit(request)
    async with asyncio.timeout(10):
        return await request.result


TOO_MUCH = b"x" * (MAX_ANSWER_BYTES + 1)


@pytest.mark.parametrize(
    ("raw", "ends", "expected"),
    [
        (b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nTTL: 30\r\n\r\n", False, WebPushAnswer(201, ttl_s=30)),
        (b"HTTP/1.1 201 Created\r\n\r\n", True, WebPushAnswer(201)),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", False, WebPushAnswer(201)),
        (b'HTTP/1.1 410 Gone\r\n\r\n{"errno":103}', True, WebPushAnswer(410, "errno 103")),
        (b"HTTP/1.1 404 Not\r\n\r\n" + TOO_MUCH, False, WebPushAnswer(404, "HTTP 404")),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            False,
            WebPushAnswer(302, "HTTP 302"),
        ),
        (
            b"HTTP/1.1 429 Slow\r\nRetry-After: 5\r\ncontent-length: 0\r\n\r\n",
            False,
            WebPushAnswer(429, "HTTP 429", 5_000),
        ),
        (b"SSH-2.0-x\r\n", False, WebPushAnswer(UNKNOWN, "no HTTP answer: HttpParserInvalidStatusError")),
        (b"", True, WebPushAnswer(UNKNOWN, "connection lost: closed by the service")),
        (b"HTTP/1.1 20", True, WebPushAnswer(UNKNOWN, "connection lost: closed by the service")),
        (b"HTTP/1.1 201 Created\r\nx: " + TOO_MUCH, False, WebPushAnswer(UNKNOWN, "the answer is too long")),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_answers(raw: bytes, ends: bool, expected: WebPushAnswer) -> None:
    service = RawService(raw, ends=ends)
    async with sender_to(service) as sender:
        found = await answer_of(sender, pending())
    if found is not None and found.reason.startswith("no HTTP answer"):
        found = WebPushAnswer(found.status, expected.name)
    assert found == expected


async def test_requests_share_connections_and_name_their_service() -> None:
    service = RawService(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    async with sender_to(service) as sender:
        for _ in range(3):
            assert await answer_of(sender, pending()) == WebPushAnswer(201)
        await asyncio.gather(*(answer_of(sender, pending()) for _ in range(100)))
    assert service.connections <= 33
    head, _, body = service.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /wpush/v2/a HTTP/1.1"
    host = "host: updates.push.services.mozilla.com"
    assert {host, "ttl: 60", "topic: carillon-7", f"content-length: {len(body)}"} < {*lines}
    assert len({request.partition(b"\r\n\r\n")[2] for request in service.requests}) == 103


async def test_what_is_not_sent() -> None:
    service = RawService(b"HTTP/1.1 503 Busy\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n")
    async with sender_to(service) as sender:
        refused = await answer_of(sender, pending("https://127.0.0.1/a"))
        unwanted = pending()
        unwanted.wanted = False
        assert refused == WebPushAnswer(LOCAL, ENDPOINT_REFUSED)
        assert await answer_of(sender, unwanted) is None
        assert service.requests == []
        busy = WebPushAnswer(503, "HTTP 503", 60_000)
        assert [await answer_of(sender, pending()) for _ in range(3)] == [busy] * 3
        assert len(service.requests) == 1
    nowhere = PushServices(ReplacedConnector(lambda: ("127.0.0.1", 1)), ManualClock(NOW_MS))
    vapid = VapidHeaders(CREDENTIALS, ManualClock(NOW_MS))
    lost = WebPushSender(nowhere, vapid, AllowedHosts(), ManualClock(NOW_MS))
    assert await answer_of(lost, pending()) == WebPushAnswer(LOCAL, NO_CONNECTION)
    await nowhere.close()


BUSY = b"HTTP/1.1 %d Busy\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(("status", "requests"), [(429, 4), (503, 1)])
async def test_a_pause_that_a_service_asks_of_an_app_is_no_other_apps(status: int, requests: int) -> None:
    """429 for two subscriptions: the app sends too much. 503: the service wants no requests at all."""
    service = RawService(BUSY % status)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    clock = ManualClock(NOW_MS)
    services = PushServices(ReplacedConnector(lambda: server.sockets[0].getsockname()[:2]), clock)
    for credentials in (CREDENTIALS, new_credentials()):
        sender = WebPushSender(services, VapidHeaders(credentials, clock), AllowedHosts(), clock)
        for number in range(4):
            answer = await answer_of(sender, pending(f"{ENDPOINT}{number}"))
            assert answer is not None
            assert answer.retry_after_ms == 60_000
    assert len(service.requests) == requests
    clock.move(60)
    await answer_of(sender, pending())
    assert len(service.requests) == requests + 1
    await services.close()
    server.close()


async def test_a_pause_that_a_service_asks_of_one_subscription_is_no_other_ones() -> None:
    service = RawService(BUSY % 429)
    async with sender_to(service) as sender:
        for _ in range(3):
            assert await answer_of(sender, pending()) == WebPushAnswer(429, "HTTP 429", 60_000)
        await answer_of(sender, pending(f"{ENDPOINT}b"))
        assert len(service.requests) == 4
        assert await answer_of(sender, pending(f"{ENDPOINT}c")) == WebPushAnswer(503, "HTTP 503", 60_000)
        assert len(service.requests) == 4


async def test_other_tasks_run_while_many_messages_are_encrypted() -> None:
    service = RawService(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    wanted: list[Pending] = []

    class Noted(Pending):
        def is_wanted(self) -> bool:
            wanted.append(self)
            return True

    async with sender_to(service) as sender:
        messages = [Noted(pending().request) for _ in range(3 * CONNECTIONS)]
        for message in messages:
            sender.submit(message)
        in_turns = []
        while len(wanted) < CONNECTIONS:
            await asyncio.sleep(0)
            in_turns.append(len(wanted))
        first = [in_turns.index(count * _AT_ONCE) for count in (1, 2, 3)]
        assert first == [0, _TURNS_A_REQUEST * _AT_ONCE + 1, 2 * (_TURNS_A_REQUEST * _AT_ONCE + 1)]
        assert await asyncio.gather(*(message.result for message in messages)) == [WebPushAnswer(201)] * len(messages)
    assert wanted == messages
    assert service.connections <= CONNECTIONS


async def test_a_service_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    service = HeldService(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    async with sender_to(service) as sender:
        monkeypatch.setattr(client, "ANSWER_S", 0.02)
        assert await answer_of(sender, pending()) == WebPushAnswer(UNKNOWN, "no answer within 0.02 s")
        monkeypatch.setattr(client, "ANSWER_S", 60)
        service.release(2)
        assert await answer_of(sender, pending()) == WebPushAnswer(201)
    assert service.connections == 2


async def test_messages_of_a_closed_sender_are_not_answered() -> None:
    service = HeldService(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    messages = [pending() for _ in range(2 * CONNECTIONS)]
    async with sender_to(service) as sender:
        for message in messages:
            sender.submit(message)
        await until_holds(lambda: len(service.requests) == CONNECTIONS)
    service.release(CONNECTIONS)
    await run_ready_tasks()
    assert not any(message.result.done() for message in messages)


async def test_an_app_with_many_messages_takes_turns_with_another_one() -> None:
    service = HeldService(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    clock = ManualClock(NOW_MS)
    services = PushServices(ReplacedConnector(lambda: server.sockets[0].getsockname()[:2]), clock)
    other = new_credentials()
    busy, quiet = (
        WebPushSender(services, VapidHeaders(credentials, clock), AllowedHosts(), clock)
        for credentials in (CREDENTIALS, other)
    )
    for _ in range(10 * CONNECTIONS):
        busy.submit(pending())
    await until_holds(lambda: len(service.requests) == CONNECTIONS)
    quiet.submit(pending())
    await run_ready_tasks()
    service.release(2)
    await until_holds(lambda: len(service.requests) == CONNECTIONS + 2)
    assert [other.public_key_text.encode() in request for request in service.requests[CONNECTIONS:]].count(True) == 1
    await services.close()
    server.close()


async def test_a_known_service_that_cannot_be_reached_is_counted_until_it_can() -> None:
    """Services that only `*` allows are not: a device may name any host, also one that never existed."""
    unreachable, clock = CHANNEL_UNREACHABLE.labels("webpush")._value.get, ManualClock(NOW_MS)
    before = unreachable()
    service = RawService(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    address = nowhere = "127.0.0.1", 1
    services = PushServices(ReplacedConnector(lambda: address), clock)
    sender = WebPushSender(services, VapidHeaders(CREDENTIALS, clock), AllowedHosts(["*", "push.example.org"]), clock)

    async def counted_after(*hosts: str) -> float:
        for host in hosts:
            await answer_of(sender, pending(f"https://{host}/a"))
        return float(unreachable() - before)

    assert await counted_after("gone.example.net") == 0
    assert await counted_after("a.notify.windows.com", "b.notify.windows.com") == 1
    assert await counted_after("push.example.org", "fcm.googleapis.com") == 3
    address = server.sockets[0].getsockname()[:2]
    assert await counted_after("c.notify.windows.com", "push.example.org") == 1
    address = nowhere
    clock.move(UnreachableServices.FORGOTTEN_MS // 1000)
    services._close_idle()
    assert unreachable() == before
    assert await counted_after("web.push.apple.com") == 1
    await services.close()
    assert unreachable() == before
    server.close()
