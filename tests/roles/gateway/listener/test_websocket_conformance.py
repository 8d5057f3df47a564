"""RFC 6455 at the real door, on bare sockets: the cases of the Autobahn test suite that apply to text frames of JSON.

One difference to a server that echoes: the answer to a valid message is the answer to the request in it.
"""

import json

import pytest

from services.domain.device_protocol import MAX_FRAME_BYTES
from tests.roles.gateway.conftest import ANDROID, House
from tests.roles.gateway.listener.raw import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    UPGRADE,
    Frame,
    RawClient,
    close,
    frame,
)

OK, PROTOCOL_ERROR, UNSUPPORTED, NO_TEXT, TOO_BIG = 1000, 1002, 1003, 1007, 1009
REQUEST = json.dumps({"type": "get_device", "id": 1}).encode()
NAMED = json.dumps({"type": "set_alias", "id": 1, "alias": "µ@ßöäüàá κόσμε 𝄞"}, ensure_ascii=False).encode()
NO_UTF_8 = [
    b"\xff",
    b"\x80",
    b"\xc0\xaf",  # overlong
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xed\xa0\x80",  # a surrogate
    b"\xf4\x90\x80\x80",  # above U+10FFFF
    b"\xf8\x88\x80\x80\x80",
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce",  # cut short
]


async def welcomed(house: House) -> RawClient:
    client = await RawClient.connect(house.port)
    assert (await client.hello(ANDROID))["type"] == "welcome"
    return client


async def answered(client: RawClient) -> bool:
    """Is the request that was sent answered, and the connection still good?"""
    if (await client.hear())["type"] != "ok":
        return False
    client.send(frame(PING, b"still there"))
    return await client.next() == Frame(PONG, b"still there")


async def failed(client: RawClient, code: int) -> bool:
    return (await client.ending()).code == code


@pytest.mark.parametrize("size", [0, 1, 2, 124, 125])
async def test_a_ping_is_answered_with_its_payload(house: House, size: int) -> None:
    client = await welcomed(house)
    payload = bytes(range(255, 255 - size, -1))
    client.send(frame(PING, payload))
    assert await client.next() == Frame(PONG, payload)


async def test_many_pings_are_answered_in_order(house: House) -> None:
    client = await welcomed(house)
    client.send(*(frame(PING, str(number).encode()) for number in range(1000)))
    assert [await client.next() for _ in range(1000)] == [Frame(PONG, str(number).encode()) for number in range(1000)]


async def test_pongs_that_nobody_asked_for_are_ignored(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(PONG), frame(PONG, b"unasked"), frame(TEXT, REQUEST))
    assert await answered(client)


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
async def test_a_control_frame_has_at_most_125_bytes(house: House, opcode: int) -> None:
    client = await welcomed(house)
    client.send(frame(opcode, b"\x03\xe8" + b"x" * 124))
    assert await failed(client, PROTOCOL_ERROR)


@pytest.mark.parametrize("opcode", [PING, PONG, CLOSE])
async def test_a_control_frame_comes_in_one_piece(house: House, opcode: int) -> None:
    client = await welcomed(house)
    client.send(frame(opcode, b"\x03\xe8", fin=False), frame(CONTINUATION, b""))
    assert await failed(client, PROTOCOL_ERROR)


@pytest.mark.parametrize("opcode", [TEXT, PING])
@pytest.mark.parametrize("rsv", [1, 2, 3, 4, 5, 6, 7])
async def test_reserved_bits_are_refused(house: House, rsv: int, opcode: int) -> None:
    client = await welcomed(house)
    client.send(frame(opcode, REQUEST, rsv=rsv))
    assert await failed(client, PROTOCOL_ERROR)


@pytest.mark.parametrize("opcode", [3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF])
async def test_reserved_opcodes_are_refused(house: House, opcode: int) -> None:
    client = await welcomed(house)
    client.send(frame(opcode, b"x"))
    assert await failed(client, PROTOCOL_ERROR)


@pytest.mark.parametrize("opcode", [TEXT, PING, CLOSE])
async def test_frames_that_are_not_masked_are_refused(house: House, opcode: int) -> None:
    client = await welcomed(house)
    client.send(frame(opcode, b"{}", masked=False))
    assert await failed(client, PROTOCOL_ERROR)


@pytest.mark.parametrize(
    "size", [bytes([126, 0, len(REQUEST)]), bytes([127, 0, 0, 0, 0, 0, 0, 0, len(REQUEST)]), bytes([127] + [255] * 8)]
)
async def test_a_length_is_written_in_the_shortest_way(house: House, size: bytes) -> None:
    client = await welcomed(house)
    client.send(frame(TEXT, REQUEST, size=size))
    assert await failed(client, PROTOCOL_ERROR)


@pytest.mark.parametrize("size", [125, 126, 127, 128, MAX_FRAME_BYTES])
async def test_a_message_may_have_any_length_up_to_the_greatest(house: House, size: int) -> None:
    client = await welcomed(house)
    client.send(frame(TEXT, REQUEST.ljust(size)))
    assert await answered(client)


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 65_535, 65_536])
async def test_a_message_that_is_too_long_is_refused(house: House, size: int) -> None:
    client = await welcomed(house)
    client.send(frame(TEXT, REQUEST.ljust(size)))
    assert await failed(client, TOO_BIG)


async def test_a_message_that_says_it_is_huge_is_refused_before_it_comes(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(TEXT, b"{", size=bytes([127, *(2**40).to_bytes(8, "big")])))
    assert await failed(client, TOO_BIG)


async def test_fragments_that_are_too_long_together_are_refused(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(TEXT, b" " * MAX_FRAME_BYTES, fin=False), frame(CONTINUATION, b" "))
    assert await failed(client, TOO_BIG)


@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
async def test_a_message_may_come_in_fragments(house: House, piece: int) -> None:
    client = await welcomed(house)
    pieces = [REQUEST[start : start + piece] for start in range(0, len(REQUEST), piece)]
    client.send(frame(TEXT, b"", fin=False))
    client.send(*(frame(CONTINUATION, part, fin=False) for part in pieces))
    client.send(frame(CONTINUATION, b""))
    assert await answered(client)


async def test_control_frames_may_come_between_fragments(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(TEXT, REQUEST[:3], fin=False))
    for number in range(10):
        client.send(frame(PING, bytes([number])), frame(PONG), frame(CONTINUATION, b"", fin=False))
        assert await client.next() == Frame(PONG, bytes([number]))
    client.send(frame(CONTINUATION, REQUEST[3:]))
    assert await answered(client)


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("fin", [True, False])
async def test_a_new_message_may_not_begin_inside_another(house: House, opcode: int, fin: bool) -> None:
    client = await welcomed(house)
    client.send(frame(TEXT, REQUEST[:3], fin=False), frame(opcode, REQUEST, fin=fin))
    assert await failed(client, PROTOCOL_ERROR)


@pytest.mark.parametrize("fin", [True, False])
@pytest.mark.parametrize(
    "before", [b"", frame(TEXT, REQUEST), frame(TEXT, b"", fin=False) + frame(CONTINUATION, REQUEST)]
)
async def test_a_continuation_needs_a_beginning(house: House, before: bytes, fin: bool) -> None:
    client = await welcomed(house)
    client.send(before, frame(CONTINUATION, b"x", fin=fin))
    assert await failed(client, PROTOCOL_ERROR)


async def test_binary_messages_are_refused(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(BINARY, REQUEST))
    assert await failed(client, UNSUPPORTED)


@pytest.mark.parametrize("piece", [1, 3, 1000])
async def test_text_is_utf_8_wherever_it_is_cut(house: House, piece: int) -> None:
    client = await welcomed(house)
    pieces = [NAMED[start : start + piece] for start in range(0, len(NAMED), piece)]
    client.send(frame(TEXT, b"", fin=False), *(frame(CONTINUATION, part, fin=False) for part in pieces))
    client.send(frame(CONTINUATION))
    assert await answered(client)


@pytest.mark.parametrize("fragmented", [False, True])
@pytest.mark.parametrize("wrong", NO_UTF_8)
async def test_text_that_is_not_utf_8_is_refused(house: House, wrong: bytes, fragmented: bool) -> None:
    client = await welcomed(house)
    text = b'{"type":"set_alias","id":1,"alias":"' + wrong + b'"}'
    if fragmented:
        client.send(*(frame(CONTINUATION if at else TEXT, text[at : at + 1], fin=False) for at in range(len(text))))
        client.send(frame(CONTINUATION))
    else:
        client.send(frame(TEXT, text))
    assert await failed(client, NO_TEXT)


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
async def test_a_close_is_answered_with_its_code(house: House, code: int) -> None:
    client = await welcomed(house)
    client.send(close(code, "leb wohl, ß".encode()))
    assert (await client.next()).code == code
    assert await client.rest() == b""


@pytest.mark.parametrize("code", [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535])
async def test_a_close_with_a_code_that_must_not_be_sent_is_an_error(house: House, code: int) -> None:
    client = await welcomed(house)
    client.send(close(code))
    assert await failed(client, PROTOCOL_ERROR)


async def test_a_close_without_a_code_is_answered_without_one(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(CLOSE))
    assert await client.next() == Frame(CLOSE, b"")
    assert await client.rest() == b""


async def test_a_close_of_one_byte_is_an_error(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(CLOSE, b"\x03"))
    assert await failed(client, PROTOCOL_ERROR)


@pytest.mark.parametrize("wrong", NO_UTF_8)
async def test_the_reason_of_a_close_is_utf_8(house: House, wrong: bytes) -> None:
    client = await welcomed(house)
    client.send(close(OK, wrong))
    assert await failed(client, NO_TEXT)


async def test_a_close_may_have_the_longest_reason(house: House) -> None:
    client = await welcomed(house)
    client.send(close(OK, b"x" * 123))
    assert (await client.next()).code == OK


@pytest.mark.parametrize("after", [frame(TEXT, REQUEST), frame(PING), close(OK), close(OK) + frame(TEXT, REQUEST)])
async def test_nothing_is_answered_after_a_close(house: House, after: bytes) -> None:
    client = await welcomed(house)
    client.send(close(OK), after)
    assert (await client.next()).code is not None
    assert await client.rest() == b""


async def test_nothing_is_answered_after_a_goodbye(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(BINARY), frame(PING), frame(TEXT, REQUEST))
    assert (await client.hear())["type"] == "goodbye"
    assert await failed(client, UNSUPPORTED)


async def test_a_close_inside_a_fragmented_message_ends_it(house: House) -> None:
    client = await welcomed(house)
    client.send(frame(TEXT, REQUEST, fin=False), close(OK))
    assert (await client.next()).code == OK
    assert await client.rest() == b""


@pytest.mark.parametrize(
    ("sent", "reason"),
    [(frame(3), "protocol"), (close(1005), "protocol"), (close(5000), "protocol"), (close(OK), ""), (frame(CLOSE), "")],
)
async def test_the_log_says_whose_fault_the_end_was(house: House, sent: bytes, reason: str) -> None:
    client = await welcomed(house)
    client.send(sent)
    await client.ending()
    events, _ = await house.session_facts(enough=2)
    assert events[-1].reason == reason


async def test_frames_may_come_byte_by_byte_and_many_at_once(house: House) -> None:
    client = await welcomed(house)
    await client.send_slowly(frame(TEXT, NAMED) + frame(PING, b"slow"))
    assert {(await client.next()).opcode for _ in range(2)} == {TEXT, PONG}
    client.send(*[frame(TEXT, REQUEST)] * 50)
    assert [(await client.hear())["type"] for _ in range(50)] == ["ok"] * 50


async def test_the_upgrade_request_may_come_byte_by_byte(house: House) -> None:
    client = await RawClient.connect(house.port, upgrade=False)
    await client.send_slowly(UPGRADE)
    await client.upgraded()
    assert (await client.hello(ANDROID))["type"] == "welcome"
