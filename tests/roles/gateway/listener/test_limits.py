"""What the door does not take: frames that are none, too much, too late, too slow."""

import asyncio
import json

import pytest
from picows import WSMsgType

from protos.push.v1.push_pb2 import Message
from services.domain.device_protocol import MAX_FRAME_BYTES
from tests.roles.gateway.conftest import ANDROID, House
from tests.roles.gateway.scripted import BOUND_S, Client

PROTOCOL_ERROR, UNSUPPORTED, TOO_BIG, POLICY = 1002, 1003, 1009, 1008


async def welcomed(house: House) -> Client:
    client = await Client.connect(house.port)
    await client.hello(ANDROID)
    return client


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"null", b"[" * 8000, b'{"type":"get_device","x":' + b"[" * 8000]
)
async def test_what_is_no_json_object_ends_the_connection(house: House, payload: bytes, greeted: bool) -> None:
    client = await welcomed(house) if greeted else await Client.connect(house.port)
    client.raw(payload)
    assert await client.goodbye() == "protocol"
    assert client.close_code == PROTOCOL_ERROR


async def test_a_wrong_hello_is_told_why_in_the_close_frame(house: House) -> None:
    client = await Client.connect(house.port)
    client.send(type="hello", appkey=True)
    assert await client.goodbye() == "protocol"
    received = client.transport.close_handshake.recv
    assert received is not None
    assert "appkey" in received.reason


async def test_binary_frames_are_refused(house: House) -> None:
    client = await welcomed(house)
    client.raw(b"{}", WSMsgType.BINARY)
    assert await client.goodbye() == "protocol"
    assert client.close_code == UNSUPPORTED


async def test_a_frame_of_the_greatest_size_passes_and_one_byte_more_does_not(house: House) -> None:
    client = await welcomed(house)
    frame = json.dumps({"type": "get_device", "id": 1}).encode()
    client.raw(frame.ljust(MAX_FRAME_BYTES))
    assert (await client.next())["type"] == "ok"
    client.raw(frame.ljust(MAX_FRAME_BYTES + 1))
    assert await client.goodbye() == "protocol"
    assert client.close_code == TOO_BIG


async def test_a_huge_frame_is_not_even_read(house: House) -> None:
    client = await welcomed(house)
    client.raw(b"x" * 1_000_000)
    assert await client.closed() == TOO_BIG


async def test_fragments_are_put_together(house: House) -> None:
    client = await welcomed(house)
    frame = json.dumps({"type": "get_device", "id": 1}).encode()
    client.raw(frame[:5], fin=False)
    client.raw(frame[5:9], WSMsgType.CONTINUATION, fin=False)
    client.transport.send_ping(b"between")
    client.raw(frame[9:], WSMsgType.CONTINUATION)
    assert (await client.next())["type"] == "ok"
    client.raw(frame)
    assert (await client.next())["type"] == "ok"


async def test_fragments_are_bounded_and_ordered(house: House) -> None:
    client = await welcomed(house)
    client.raw(b" " * 5000, fin=False)
    client.raw(b" " * 5000, WSMsgType.CONTINUATION)
    assert (await client.goodbye(), client.close_code) == ("protocol", TOO_BIG)
    client = await welcomed(house)
    client.raw(b"{}", WSMsgType.CONTINUATION)
    assert (await client.goodbye(), client.close_code) == ("protocol", PROTOCOL_ERROR)
    client = await welcomed(house)
    client.raw(b"{", fin=False)
    client.raw(b"{}")
    assert (await client.goodbye(), client.close_code) == ("protocol", PROTOCOL_ERROR)


async def test_too_many_frames_in_ten_seconds_end_the_connection(house: House) -> None:
    client = await welcomed(house)
    for _ in range(house.settings.gateway_frames_per_10s - 2):
        client.send(type="activity", event="login")
    assert (await client.ask(type="get_device", id=1))["type"] == "ok"
    house.clock.move(10)
    for _ in range(house.settings.gateway_frames_per_10s - 1):
        client.send(type="activity", event="login")
    assert (await client.ask(type="get_device", id=2))["type"] == "ok"
    client.transport.send_ping(b"")
    assert await client.goodbye() == "protocol"
    assert client.close_code == POLICY


async def test_pings_are_answered_and_keep_a_device(house: House) -> None:
    client = await welcomed(house)
    for _ in range(3):
        house.clock.move(300)
        client.transport.send_ping(b"still here")
        async with asyncio.timeout(BOUND_S):
            assert await client.pongs.get() == b"still here"
    house.clock.move(369)
    assert (await client.ask(type="get_device", id=1))["type"] == "ok"
    house.clock.move(370)
    assert await client.goodbye() == "idle"


async def test_a_connection_that_never_says_hello_is_ended_whatever_else_it_says(house: House) -> None:
    client = await Client.connect(house.port)
    house.clock.move(9)
    client.transport.send_ping(b"")
    async with asyncio.timeout(BOUND_S):
        await client.pongs.get()
    client_two = await Client.connect(house.port)
    house.clock.move(1)
    assert await client.goodbye() == "idle"
    assert (await client_two.hello(ANDROID))["type"] == "welcome"
    house.clock.move(60)
    assert (await client_two.ask(type="get_device", id=1))["type"] == "ok"


async def test_a_device_that_takes_nothing_is_cut_off(house: House) -> None:
    client = await welcomed(house)
    client.transport.underlying_transport.pause_reading()
    (connection,) = await house.delivery.until(house.delivery.connections)
    message = Message(is_notif=True, content="x" * 60_000)
    for msgid in range(1, 200):
        house.delivery.send(message, [connection], [msgid])
    await house.delivery.until(house.delivery.disconnected)
    events, _ = await house.session_facts(enough=2)
    assert events[-1].reason == "slow"
    client.transport.disconnect(graceful=False)


async def test_a_device_that_vanishes_is_noticed(house: House) -> None:
    client = await welcomed(house)
    client.transport.disconnect(graceful=False)
    events, _ = await house.session_facts(enough=2)
    assert events[-1].reason == "lost"
