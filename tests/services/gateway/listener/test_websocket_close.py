"""RFC 6455 on bare sockets: the closing handshake, with the cases of the Autobahn test suite."""

import json

import pytest

from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import (
    BINARY,
    CLOSE,
    INVALID_UTF_8,
    PING,
    TEXT,
    Frame,
    RawClient,
    close,
    frame,
)

OK, PROTOCOL_ERROR, UNSUPPORTED, INVALID_TEXT = 1000, 1002, 1003, 1007
REQUEST = json.dumps({"type": "get_device", "id": 1}).encode()


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
async def test_a_close_frame_is_answered_with_its_code(gateway: RunningGateway, code: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(close(code, "leb wohl, ß".encode()))
    assert (await client.next()).code == code
    assert await client.rest() == b""


@pytest.mark.parametrize("code", [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535])
async def test_a_close_code_that_must_not_be_sent_is_an_error(gateway: RunningGateway, code: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(close(code))
    assert (await client.closed()).code == PROTOCOL_ERROR


async def test_a_close_frame_without_a_code_is_answered_without_one(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(CLOSE))
    assert await client.next() == Frame(CLOSE, b"")
    assert await client.rest() == b""


async def test_a_close_frame_of_one_byte_is_an_error(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(CLOSE, b"\x03"))
    assert (await client.closed()).code == PROTOCOL_ERROR


@pytest.mark.parametrize("wrong", INVALID_UTF_8)
async def test_the_reason_of_a_close_frame_must_be_utf_8(gateway: RunningGateway, wrong: bytes) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(close(OK, wrong))
    assert (await client.closed()).code == INVALID_TEXT


async def test_a_close_frame_may_have_a_reason_of_123_bytes(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(close(OK, b"x" * 123))
    assert (await client.next()).code == OK


@pytest.mark.parametrize("after", [frame(TEXT, REQUEST), frame(PING), close(OK), close(OK) + frame(TEXT, REQUEST)])
async def test_nothing_is_answered_after_a_close_frame(gateway: RunningGateway, after: bytes) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(close(OK), after)
    assert (await client.next()).code is not None
    assert await client.rest() == b""


async def test_nothing_is_answered_after_a_goodbye(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(BINARY), frame(PING), frame(TEXT, REQUEST))
    assert (await client.next_json())["type"] == "goodbye"
    assert (await client.closed()).code == UNSUPPORTED


@pytest.mark.parametrize("padding", [0, 1])
async def test_the_reason_of_a_close_frame_is_not_cut_inside_a_character(gateway: RunningGateway, padding: int) -> None:
    client = await RawClient.connect(gateway.port)
    client.send_json(type="x" * padding + "é" * 200)
    assert (await client.next_json())["reason"] == "protocol"
    closed = await client.closed()
    assert closed.code == PROTOCOL_ERROR
    assert 110 < len(closed.payload) <= 122
    assert "é" in closed.payload[2:].decode()


async def test_a_close_frame_inside_a_fragmented_message_closes(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(TEXT, REQUEST, fin=False), close(OK))
    assert (await client.next()).code == OK
    assert await client.rest() == b""


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(frame(3), "protocol"), (close(1005), "protocol"), (close(5000), "protocol"), (close(OK), ""), (frame(CLOSE), "")],
)
async def test_the_session_fact_records_protocol_errors(gateway: RunningGateway, sent: bytes, reason: str) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(sent)
    await client.closed()
    events, _ = await gateway.session_facts(enough=2)
    assert events[-1].reason == reason
