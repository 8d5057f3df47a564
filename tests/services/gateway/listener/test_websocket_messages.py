"""RFC 6455 on bare sockets: messages, fragments and control frames, with the cases of the Autobahn test suite.

Where Autobahn expects an echo, the gateway answers the request in the message.
"""

import json

import pytest

from services.domain.device_protocol.frames import MAX_FRAME_BYTES
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    INVALID_UTF_8,
    PING,
    PONG,
    TEXT,
    UPGRADE,
    Frame,
    RawClient,
    frame,
)

PROTOCOL_ERROR, UNSUPPORTED, INVALID_TEXT, TOO_BIG = 1002, 1003, 1007, 1009
REQUEST = json.dumps({"type": "get_device", "id": 1}).encode()
SET_ALIAS = json.dumps({"type": "set_alias", "id": 1, "alias": "µ@ßöäüàá κόσμε 𝄞"}, ensure_ascii=False).encode()


async def answered(client: RawClient) -> bool:
    """Return whether the request that was sent is answered and the connection still works."""
    if (await client.next_json())["type"] != "ok":
        return False
    client.send(frame(PING, b"still open"))
    return await client.next() == Frame(PONG, b"still open")


@pytest.mark.parametrize("size", [0, 1, 2, 124, 125])
async def test_a_ping_is_answered_with_its_payload(gateway: RunningGateway, size: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    payload = bytes(range(255, 255 - size, -1))
    client.send(frame(PING, payload))
    assert await client.next() == Frame(PONG, payload)


async def test_many_pings_are_answered_in_order(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(*(frame(PING, str(number).encode()) for number in range(1000)))
    assert [await client.next() for _ in range(1000)] == [Frame(PONG, str(number).encode()) for number in range(1000)]


async def test_unsolicited_pongs_are_ignored(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(PONG), frame(PONG, b"unsolicited"), frame(TEXT, REQUEST))
    assert await answered(client)


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
async def test_a_control_frame_has_at_most_125_bytes(gateway: RunningGateway, opcode: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(opcode, b"\x03\xe8" + b"x" * 124))
    assert (await client.closed()).code == PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
async def test_a_control_frame_must_not_be_fragmented(gateway: RunningGateway, opcode: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(opcode, b"\x03\xe8", fin=False), frame(CONTINUATION, b""))
    assert (await client.closed()).code == PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [TEXT, PING])
@pytest.mark.parametrize("rsv", [1, 2, 3, 4, 5, 6, 7])
async def test_reserved_bits_are_refused(gateway: RunningGateway, rsv: int, opcode: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(opcode, REQUEST, rsv=rsv))
    assert (await client.closed()).code == PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF])
async def test_reserved_opcodes_are_refused(gateway: RunningGateway, opcode: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(opcode, b"x"))
    assert (await client.closed()).code == PROTOCOL_ERROR


@pytest.mark.parametrize("opcode", [TEXT, PING, CLOSE])
async def test_unmasked_frames_are_refused(gateway: RunningGateway, opcode: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(opcode, b"{}", masked=False))
    assert (await client.closed()).code == PROTOCOL_ERROR


@pytest.mark.parametrize("size", [bytes([126, 0, len(REQUEST)]), bytes([127, 0, 0, 0, 0, 0, 0, 0, len(REQUEST)])])
async def test_a_length_must_use_the_shortest_encoding(gateway: RunningGateway, size: bytes) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(TEXT, REQUEST, size=size))
    assert (await client.closed()).code == PROTOCOL_ERROR


@pytest.mark.parametrize("size", [125, 126, 127, 128, MAX_FRAME_BYTES])
async def test_a_message_may_have_any_length_up_to_the_maximum(gateway: RunningGateway, size: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(TEXT, REQUEST.ljust(size)))
    assert await answered(client)


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 65_535, 65_536])
async def test_a_message_that_is_too_long_is_refused(gateway: RunningGateway, size: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(TEXT, REQUEST.ljust(size)))
    assert (await client.closed()).code == TOO_BIG


@pytest.mark.parametrize(("length", "code"), [(2**40, TOO_BIG), (2**64 - 1, PROTOCOL_ERROR)])
async def test_a_message_that_announces_a_huge_length_is_refused_at_once(
    gateway: RunningGateway, length: int, code: int
) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(TEXT, b"{", size=bytes([127, *length.to_bytes(8, "big")])))
    assert (await client.next_json())["reason"] == "protocol"
    assert (await client.next()).code == code
    gateway.clock.move(5)
    assert await client.rest() == b"", "the device's close frame is a part of that message"


async def test_fragments_that_are_too_long_together_are_refused(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(TEXT, b" " * MAX_FRAME_BYTES, fin=False), frame(CONTINUATION, b" "))
    assert (await client.closed()).code == TOO_BIG


@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
async def test_a_message_may_come_in_fragments(gateway: RunningGateway, piece: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    pieces = [REQUEST[start : start + piece] for start in range(0, len(REQUEST), piece)]
    client.send(frame(TEXT, b"", fin=False))
    client.send(*(frame(CONTINUATION, part, fin=False) for part in pieces))
    client.send(frame(CONTINUATION, b""))
    assert await answered(client)


async def test_control_frames_may_come_between_fragments(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(TEXT, REQUEST[:3], fin=False))
    for number in range(10):
        client.send(frame(PING, bytes([number])), frame(PONG), frame(CONTINUATION, b"", fin=False))
        assert await client.next() == Frame(PONG, bytes([number]))
    client.send(frame(CONTINUATION, REQUEST[3:]))
    assert await answered(client)


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("fin", [True, False])
async def test_a_new_message_may_not_begin_inside_another(gateway: RunningGateway, opcode: int, fin: bool) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(TEXT, REQUEST[:3], fin=False), frame(opcode, REQUEST, fin=fin))
    assert (await client.closed()).code == PROTOCOL_ERROR


@pytest.mark.parametrize("fin", [True, False])
@pytest.mark.parametrize(
    "before", [b"", frame(TEXT, REQUEST), frame(TEXT, b"", fin=False) + frame(CONTINUATION, REQUEST)]
)
async def test_a_continuation_needs_a_first_fragment(gateway: RunningGateway, before: bytes, fin: bool) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(before, frame(CONTINUATION, b"x", fin=fin))
    assert (await client.closed()).code == PROTOCOL_ERROR


async def test_binary_messages_are_refused(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send(frame(BINARY, REQUEST))
    assert (await client.closed()).code == UNSUPPORTED


@pytest.mark.parametrize("piece", [1, 3, 1000])
async def test_text_may_be_fragmented_inside_a_character(gateway: RunningGateway, piece: int) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    pieces = [SET_ALIAS[start : start + piece] for start in range(0, len(SET_ALIAS), piece)]
    client.send(frame(TEXT, b"", fin=False), *(frame(CONTINUATION, part, fin=False) for part in pieces))
    client.send(frame(CONTINUATION))
    assert await answered(client)


@pytest.mark.parametrize("fragmented", [False, True])
@pytest.mark.parametrize("wrong", INVALID_UTF_8)
async def test_text_that_is_not_utf_8_is_refused(gateway: RunningGateway, wrong: bytes, fragmented: bool) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    text = b'{"type":"set_alias","id":1,"alias":"' + wrong + b'"}'
    if fragmented:
        client.send(*(frame(CONTINUATION if at else TEXT, text[at : at + 1], fin=False) for at in range(len(text))))
        client.send(frame(CONTINUATION))
    else:
        client.send(frame(TEXT, text))
    assert (await client.closed()).code == INVALID_TEXT


async def test_frames_may_arrive_byte_by_byte_and_many_at_once(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    await client.send_slowly(frame(TEXT, SET_ALIAS) + frame(PING, b"slow"))
    assert {(await client.next()).opcode for _ in range(2)} == {TEXT, PONG}
    client.send(*[frame(TEXT, REQUEST)] * 50)
    assert [(await client.next_json())["type"] for _ in range(50)] == ["ok"] * 50


async def test_the_upgrade_request_may_arrive_byte_by_byte(gateway: RunningGateway) -> None:
    client = await RawClient.connect(gateway.port, upgrade=False)
    await client.send_slowly(UPGRADE)
    await client.upgraded()
    assert (await client.hello(ANDROID))["type"] == "welcome"
