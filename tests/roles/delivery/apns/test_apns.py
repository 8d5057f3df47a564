"""The sender and Apple's stand-in, over real TLS and HTTP/2."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from services.apns_simulator.behaviour import Behaviour
from services.apns_simulator.certificate import SelfSigned
from services.apns_simulator.requests import RefusedError, Request, validate
from services.apns_simulator.script import BY_PREFIX, Fault, prefix_of
from services.apns_simulator.server import ApnsSimulator
from services.delivery.apns.in_flight import Timeouts
from services.delivery.apns.push import ApnsResult
from services.delivery.apns.sender import ApnsSender
from services.domain.apns.payload import MAX_PAYLOAD_BYTES
from services.runtime.process.clock import ManualClock, SystemClock
from tests.roles.delivery.pushing import (
    TOKEN,
    TOPIC,
    Sent,
    Team,
    asked,
    many,
    one,
    open_sender,
    running,
    send,
    statuses,
    until,
)

NOW_MS = 1_800_000_000_000
DEAD = "dead" + "0" * 60


@pytest.fixture
async def simulator() -> AsyncIterator[ApnsSimulator]:
    async with running(ApnsSimulator(SystemClock())) as simulator:
        yield simulator


@pytest.fixture
async def sender(simulator: ApnsSimulator) -> AsyncIterator[ApnsSender]:
    async with open_sender(simulator) as sender:
        yield sender


async def test_a_push_arrives_with_what_apple_wants_to_know(simulator: ApnsSimulator, sender: ApnsSender) -> None:
    assert await send(sender, one(collapse_id="c")) == [ApnsResult(200)]

    (received,) = simulator.received
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
    simulator: ApnsSimulator, sender: ApnsSender
) -> None:
    await send(sender, one(), one(), one(msgid=8), one("cd" * 32))
    ids = [received.headers["apns-id"] for received in simulator.received]
    assert len(set(ids)) == 3


async def test_results_stand_in_the_order_of_the_batch(simulator: ApnsSimulator, sender: ApnsSender) -> None:
    batch = [one(), one("nothex"), one(topic=""), one(payload=b"x" * (MAX_PAYLOAD_BYTES + 1)), one(payload=b""), one()]
    assert await send(sender, *batch) == [
        ApnsResult(200),
        ApnsResult(400, "BadDeviceToken"),
        ApnsResult(400, "MissingTopic"),
        ApnsResult(413, "PayloadTooLarge"),
        ApnsResult(400, "PayloadEmpty"),
        ApnsResult(200),
    ]
    assert simulator.refused == {"BadDeviceToken": 1}


async def test_a_dead_token_is_told_with_its_time() -> None:
    clock = ManualClock(NOW_MS)
    async with running(ApnsSimulator(clock)) as simulator, open_sender(simulator, clock) as sender:
        assert await send(sender, one(DEAD)) == [ApnsResult(410, "Unregistered", clock.now_ms())]
        nameless = one(asked(prefix_of(410)))
        assert await send(sender, nameless) == [ApnsResult(410, "Unregistered")]
    assert not simulator.received


@pytest.mark.parametrize(("prefix", "known"), [item for item in BY_PREFIX.items() if item[1].status])
async def test_every_answer_can_be_asked_for(
    simulator: ApnsSimulator, sender: ApnsSender, prefix: str, known: Any
) -> None:
    (result,) = await send(sender, one(asked(prefix)))
    assert (result.status, result.reason) == (known.status, known.reason or "Unregistered")
    if known.once and known.status < 500 and known.status not in (403, 429):
        assert await statuses(sender, one(asked(prefix))) == [200]


async def test_a_batch_shares_one_connection_and_outgrows_every_window(
    simulator: ApnsSimulator, sender: ApnsSender
) -> None:
    """600 payloads of 4096 bytes and 2000 refusals are many times the 64 KiB that one window holds at first."""
    full = b'{"aps":{"alert":"' + b"x" * (MAX_PAYLOAD_BYTES - 20) + b'"}}'
    assert len(full) == MAX_PAYLOAD_BYTES
    pushes = [one(payload=full, msgid=n) for n in range(600)] + [one("nothex")] * 2000
    assert await statuses(sender, *pushes) == [200] * 600 + [400] * 2000
    assert len(simulator.connections) == 1


async def test_a_peer_with_a_small_window_gets_the_payload_in_pieces() -> None:
    async with running(ApnsSimulator(SystemClock(), behaviour=Behaviour(window=3))) as simulator:
        async with open_sender(simulator) as sender:
            assert await statuses(sender, *many([TOKEN] * 20)) == [200] * 20
        assert simulator.received[0].body == {"aps": {"alert": "hi"}}


async def test_one_stream_until_the_first_success_and_then_as_many_as_allowed() -> None:
    """h2 ends a connection on which more streams are opened than it allows."""
    simulator = ApnsSimulator(SystemClock(), behaviour=Behaviour(streams=5, latency_ms=1))
    async with running(simulator), open_sender(simulator) as sender:
        tokens = [TOKEN] * 20 + [asked(prefix_of(0, fault=Fault.ONE_STREAM))] + [TOKEN] * 20
        assert await statuses(sender, *many(tokens)) == [200] * 41
        assert len(simulator.connections) == 1
        (connection,) = simulator.connections
        assert connection.max_open_requests == 5


async def test_the_first_push_of_a_connection_goes_alone_whatever_the_peer_allows() -> None:
    simulator = ApnsSimulator(SystemClock(), behaviour=Behaviour(first_streams=100, latency_ms=300))
    async with running(simulator), open_sender(simulator) as sender:
        sent = [Sent(push) for push in many([TOKEN] * 20)]
        for sending in sent:
            sender.submit(sending)
        await sent[0].result
        (connection,) = simulator.connections
        assert connection.max_open_requests == 1
        await sent[-1].result
        assert connection.max_open_requests == 19


async def test_an_answer_that_does_not_come_in_time_is_unknown_and_holds_up_nobody(simulator: ApnsSimulator) -> None:
    silent = asked(prefix_of(0, fault=Fault.SILENCE))
    async with open_sender(simulator, timeouts=Timeouts(request=2)) as sender:
        assert await statuses(sender, one()) == [200]
        late, *others = [Sent(push) for push in many([silent] + [TOKEN] * 50)]
        for sending in (late, *others):
            sender.submit(sending)
        assert [(await sending.result) for sending in others] == [ApnsResult(200)] * 50
        assert not late.result.done()
        unknown = await late.result
        assert unknown == ApnsResult(0, "no answer in time")
        assert unknown.is_unknown
        assert await statuses(sender, one()) == [200]
        assert len(simulator.connections) == 1


async def test_a_server_that_never_says_a_word_is_left_alone_for_a_while() -> None:
    clock = ManualClock(NOW_MS)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = Team(clock).sender(f"https://127.0.0.1:{silent.getsockname()[1]}", None, Timeouts(connect=0.05))
        sent = Sent(one())
        sender.submit(sent)
        slot = sender._slots[0]
        for rest_ms in (1000, 2000, 4000):
            await until(lambda: slot.circuit.is_open(clock.now_ms()))
            assert slot.circuit.open_until_ms == clock.now_ms() + rest_ms
            clock.move(rest_ms / 1000)
        assert not sent.result.done()
        await sender.close()


async def test_a_half_open_connection_is_noticed_and_replaced(simulator: ApnsSimulator) -> None:
    timeouts = Timeouts(silence=0.2, pong=0.3)
    async with open_sender(simulator, timeouts=timeouts) as sender:
        assert await statuses(sender, one()) == [200]
        (mute,) = simulator.connections
        (lost,) = await send(sender, one(asked(prefix_of(0, fault=Fault.HALF_OPEN))))
        assert lost.is_unknown
        assert await statuses(sender, one()) == [200]
        await until(lambda: mute not in simulator.connections)


async def test_an_idle_connection_is_kept_by_pings_and_closed_at_last(simulator: ApnsSimulator) -> None:
    async with open_sender(simulator, timeouts=Timeouts(silence=0.05, pong=5, idle=0.5)) as sender:
        assert await statuses(sender, one()) == [200]
        (connection,) = simulator.connections
        await until(lambda: connection.pings >= 2)
        await until(lambda: not simulator.connections)
        assert await statuses(sender, one()) == [200]


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.GOAWAY_BEFORE, Fault.GOAWAY])
async def test_what_was_certainly_not_done_is_sent_again_and_what_was_is_not(
    simulator: ApnsSimulator, sender: ApnsSender, fault: Fault
) -> None:
    tokens = [TOKEN] * 30 + [asked(prefix_of(0, fault=fault, once=True))] + [TOKEN] * 30
    assert await statuses(sender, *many(tokens)) == [200] * 61
    assert len(simulator.received) == 61


@pytest.mark.parametrize(("fault", "reason"), [(Fault.RESET, "reset: INTERNAL_ERROR"), (Fault.CUT, "connection lost")])
async def test_what_may_have_been_done_is_unknown_and_the_next_push_goes_through(
    simulator: ApnsSimulator, sender: ApnsSender, fault: Fault, reason: str
) -> None:
    assert await statuses(sender, one()) == [200]
    (lost,) = await send(sender, one(asked(prefix_of(0, fault=fault)), msgid=8))
    assert lost.is_unknown
    assert reason in lost.reason
    assert await statuses(sender, one(msgid=8)) == [200]


async def test_a_push_that_is_not_wanted_any_more_is_skipped(simulator: ApnsSimulator, sender: ApnsSender) -> None:
    sent = Sent(one(), wanted=False)
    sender.submit(sent)
    assert await sent.result is None
    assert not simulator.received


async def test_a_connection_in_trouble_rests_ever_longer_and_is_tried_with_one_push() -> None:
    clock = ManualClock(NOW_MS)
    async with running(ApnsSimulator(clock)) as simulator, open_sender(simulator, clock) as sender:
        assert await statuses(sender, one()) == [200]
        trouble = asked(prefix_of(500, "InternalServerError"))
        for rest_s in (1, 2, 4):
            assert await statuses(sender, one(trouble)) == [500]
            waiting = Sent(one(msgid=rest_s))
            sender.submit(waiting)
            assert sender._slots[0].circuit.open_until_ms == clock.now_ms() + rest_s * 1000
            waiting.wanted = False
            clock.move(rest_s)
            assert await asyncio.wait_for(waiting.result, 5) is None
        assert await statuses(sender, one()) == [200]
        assert sender._slots[0].circuit.is_closed


async def test_a_sender_trusts_only_its_authority(simulator: ApnsSimulator) -> None:
    for authority in (None, SelfSigned.make("127.0.0.1").certificate_pem):
        sender = Team().sender(simulator.url, authority)
        sender.submit(Sent(one()))
        await until(lambda sender=sender: not sender._slots[0].circuit.is_closed)
        await sender.close()
    assert not simulator.received


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
    simulator: ApnsSimulator, method: str, path: str, status: int, reason: str
) -> None:
    trust = ssl.create_default_context(cadata=simulator.authority)
    async with httpx.AsyncClient(http1=False, http2=True, verify=trust, trust_env=False) as client:
        response = await client.request(method, simulator.url + path, content=b"{}", headers={"apns-topic": TOPIC})
    assert (response.status_code, response.json()) == (status, {"reason": reason})
    assert response.http_version == "HTTP/2"
    assert len(response.headers["apns-id"]) == 36


async def test_bytes_that_are_not_http2_end_their_connection_only(simulator: ApnsSimulator, sender: ApnsSender) -> None:
    trust = ssl.create_default_context(cadata=simulator.authority)
    trust.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(*_place(simulator), ssl=trust)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    async with asyncio.timeout(5):
        await reader.read()
    writer.close()
    assert await send(sender, one()) == [ApnsResult(200)]


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
def test_headers_are_validate(header: str, value: str, reason: str) -> None:
    headers = {":method": "POST", ":path": f"/3/device/{TOKEN}", "apns-topic": TOPIC, header: value}
    with pytest.raises(RefusedError, match=reason):
        validate(Request(list(headers.items()), bytearray(b"{}")))


def test_a_header_given_twice_and_a_hurried_background_push_are_refused() -> None:
    base = [(":method", "POST"), (":path", f"/3/device/{TOKEN}"), ("apns-topic", TOPIC)]
    for more, reason in (
        ([("apns-topic", TOPIC)], "DuplicateHeaders"),
        ([("apns-push-type", "background"), ("apns-priority", "10")], "BadPriority"),
    ):
        with pytest.raises(RefusedError, match=reason):
            validate(Request(base + more, bytearray(b"{}")))


def _place(simulator: ApnsSimulator) -> tuple[str, int]:
    url = httpx.URL(simulator.url)
    assert url.port
    return url.host, url.port
