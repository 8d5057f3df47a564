"""Limits of a connection: invalid frames, too many or too large frames, and deadlines."""

import asyncio
import json

import pytest
from picows import WSMsgType

from protos.push.v1.push_pb2 import Message
from services.domain.device_protocol.frames import MAX_FRAME_BYTES
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import BOUND_S, DeviceClient
from tests.services.gateway.conftest import StartGateway

PROTOCOL_ERROR, UNSUPPORTED, TOO_BIG, POLICY = 1002, 1003, 1009, 1008


@pytest.mark.parametrize("welcome", [False, True])
@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"null", b"[" * 8000, b'{"type":"get_device","x":' + b"[" * 8000]
)
async def test_a_frame_that_is_no_json_object_ends_the_connection(
    gateway: RunningGateway, payload: bytes, welcome: bool
) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID) if welcome else await DeviceClient.connect(gateway.port)
    client.send_payload(payload)
    assert await client.goodbye() == "protocol"
    assert client.close_code == PROTOCOL_ERROR


async def test_the_close_frame_names_the_wrong_field_of_a_hello(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    client.send(type="hello", appkey=True)
    assert await client.goodbye() == "protocol"
    received = client.transport.close_handshake.recv
    assert received is not None
    assert "appkey" in received.reason


async def test_binary_frames_are_refused(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    client.send_payload(b"{}", WSMsgType.BINARY)
    assert await client.goodbye() == "protocol"
    assert client.close_code == UNSUPPORTED


async def test_a_frame_of_the_maximum_size_passes_and_one_byte_more_does_not(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    frame = json.dumps({"type": "get_device", "id": 1}).encode()
    client.send_payload(frame.ljust(MAX_FRAME_BYTES))
    assert (await client.next())["type"] == "ok"
    client.send_payload(frame.ljust(MAX_FRAME_BYTES + 1))
    assert await client.goodbye() == "protocol"
    assert client.close_code == TOO_BIG


async def test_a_huge_frame_is_refused(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    client.send_payload(b"x" * 1_000_000)
    assert await client.closed() == TOO_BIG


async def test_fragments_are_assembled(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    frame = json.dumps({"type": "get_device", "id": 1}).encode()
    client.send_payload(frame[:5], fin=False)
    client.send_payload(frame[5:9], WSMsgType.CONTINUATION, fin=False)
    client.transport.send_ping(b"between")
    client.send_payload(frame[9:], WSMsgType.CONTINUATION)
    assert (await client.next())["type"] == "ok"
    client.send_payload(frame)
    assert (await client.next())["type"] == "ok"


async def test_fragments_are_bounded_and_ordered(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    client.send_payload(b" " * 5000, fin=False)
    client.send_payload(b" " * 5000, WSMsgType.CONTINUATION)
    assert (await client.goodbye(), client.close_code) == ("protocol", TOO_BIG)
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    client.send_payload(b"{}", WSMsgType.CONTINUATION)
    assert (await client.goodbye(), client.close_code) == ("protocol", PROTOCOL_ERROR)
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    client.send_payload(b"{", fin=False)
    client.send_payload(b"{}")
    assert (await client.goodbye(), client.close_code) == ("protocol", PROTOCOL_ERROR)


async def test_too_many_frames_in_ten_seconds_end_the_connection(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    for _ in range(gateway.settings.gateway_frames_per_10s - 2):
        client.send(type="activity", event="login")
    assert (await client.request(type="get_device", id=1))["type"] == "ok"
    gateway.clock.move(10)
    for _ in range(gateway.settings.gateway_frames_per_10s - 1):
        client.send(type="activity", event="login")
    assert (await client.request(type="get_device", id=2))["type"] == "ok"
    client.transport.send_ping(b"")
    assert await client.goodbye() == "protocol"
    assert client.close_code == POLICY


async def test_pings_are_answered_and_restart_the_idle_deadline(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    for _ in range(3):
        gateway.clock.move(300)
        client.transport.send_ping(b"still here")
        async with asyncio.timeout(BOUND_S):
            assert await client.pongs.get() == b"still here"
    gateway.clock.move(369)
    assert (await client.request(type="get_device", id=1))["type"] == "ok"
    gateway.clock.move(370)
    assert await client.goodbye() == "idle"


async def test_a_connection_without_hello_ends_at_the_deadline_despite_pings(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    gateway.clock.move(9)
    client.transport.send_ping(b"")
    async with asyncio.timeout(BOUND_S):
        await client.pongs.get()
    client_two = await DeviceClient.connect(gateway.port)
    gateway.clock.move(1)
    assert await client.goodbye() == "idle"
    assert (await client_two.hello(ANDROID))["type"] == "welcome"
    gateway.clock.move(60)
    assert (await client_two.request(type="get_device", id=1))["type"] == "ok"


async def test_a_device_that_does_not_read_is_disconnected(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    client.transport.underlying_transport.pause_reading()
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    message = Message(is_notif=True, content="x" * 60_000)
    for msgid in range(1, 200):
        gateway.delivery.send(message, [connection], [msgid])
    await gateway.delivery.until(gateway.delivery.disconnected)
    events, _ = await gateway.session_facts(enough=2)
    assert events[-1].reason == "slow"
    client.transport.disconnect(graceful=False)


async def test_a_lost_connection_is_recorded(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    client.transport.disconnect(graceful=False)
    events, _ = await gateway.session_facts(enough=2)
    assert events[-1].reason == "lost"


async def test_devices_behind_a_trusted_proxy_have_their_own_addresses(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(gateway_registrations_per_s=1, trusted_proxies="127.0.0.1")

    async def answer_to(address: str) -> str:
        client = await DeviceClient.connect(gateway.port, headers={"X-Forwarded-For": f"192.0.2.200, {address}"})
        return str((await client.hello(ANDROID))["type"])

    assert [await answer_to("203.0.113.9") for _ in range(11)] == ["welcome"] * 10 + ["goodbye"]
    assert await answer_to("203.0.113.10") == "welcome"


async def test_a_forwarded_address_of_any_other_peer_is_ignored(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(gateway_registrations_per_s=1)
    clients = [
        await DeviceClient.connect(gateway.port, headers={"X-Forwarded-For": f"203.0.113.{number}"})
        for number in range(11)
    ]
    answers = [(await client.hello(ANDROID))["type"] for client in clients]
    assert answers == ["welcome"] * 10 + ["goodbye"]
