"""Frames of RFC 6455: any frames in any pieces are read as they were sent, and any bytes at all do no harm."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    MAX_CONTROL_BYTES,
    MESSAGE_TOO_BIG,
    PING,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    Frame,
    FrameReader,
    Violation,
    encode,
    encode_close,
)
from testkit.gateway.websocket import frame

MAX_BYTES = 300
HEADER_BYTES = 14

_data_frames = st.builds(
    Frame, st.sampled_from([CONTINUATION, TEXT, BINARY]), st.binary(max_size=MAX_BYTES), st.booleans()
)
_control_frames = st.builds(
    Frame, st.sampled_from([CLOSE, PING, PONG]), st.binary(max_size=MAX_CONTROL_BYTES), st.just(True)
)
_frames = st.lists(_data_frames | _control_frames, max_size=8)
_too_long = st.builds(
    lambda size, masked: frame(TEXT, bytes(size), masked=masked), st.integers(MAX_BYTES + 1, 70_000), st.booleans()
)


def client_frame(sent: Frame) -> bytes:
    return frame(sent.opcode, sent.payload, fin=sent.is_final)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return the bytes, cut at these positions modulo their length."""
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def read_all(reader: FrameReader, parts: Sequence[bytes]) -> list[Frame | Violation]:
    return [found for part in parts for found in reader.read(part)]


@given(sent=_frames, cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_in_any_pieces_are_read_as_they_were_sent(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(client_frame, sent))
    assert read_all(FrameReader(MAX_BYTES), pieces(data, cuts)) == sent


@given(before=_frames, wrong=_too_long, after=_frames, cuts=st.lists(st.integers(0, 100_000), max_size=12))
def test_a_frame_that_is_too_long_is_passed_over_in_any_pieces(
    before: list[Frame], wrong: bytes, after: list[Frame], cuts: list[int]
) -> None:
    data = b"".join([*map(client_frame, before), wrong, *map(client_frame, after)])
    found = read_all(FrameReader(MAX_BYTES), pieces(data, cuts))
    assert isinstance(found.pop(len(before)), Violation)
    assert found == [*before, *after]


@given(parts=st.lists(st.binary(max_size=2000), max_size=8))
def test_any_bytes_are_frames_or_violations_and_little_of_them_is_kept(parts: list[bytes]) -> None:
    reader = FrameReader(MAX_BYTES)
    for found in read_all(reader, parts):
        assert isinstance(found, Violation) or len(found.payload) <= MAX_BYTES
    assert len(reader._rest) <= MAX_BYTES + HEADER_BYTES


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_a_frame_of_the_server_is_what_a_client_reads(size: int) -> None:
    payload = bytes(size)
    sent = encode(TEXT, payload)
    assert sent[0] == 0x81
    masked = sent[:1] + bytes([sent[1] | 0x80]) + sent[2 : len(sent) - size] + bytes(4) + payload
    assert FrameReader(size).read(masked) == [Frame(TEXT, payload)]
    assert FrameReader(size).read(sent) == [Violation(PROTOCOL_ERROR, "a device's frame must be masked")]


def test_a_close_frame_has_its_code_before_the_reason() -> None:
    assert encode_close(1001, b"why") == b"\x88\x05\x03\xe9why"


def test_the_vector_of_the_rfc_is_unmasked() -> None:
    sent = bytes.fromhex("818537fa213d7f9f4d5158")
    assert FrameReader(5).read(sent) == [Frame(TEXT, b"Hello")]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(TEXT, b"x", rsv=4), PROTOCOL_ERROR),
        (frame(5), PROTOCOL_ERROR),
        (frame(PING, fin=False), PROTOCOL_ERROR),
        (frame(PING, bytes(126)), PROTOCOL_ERROR),
        (frame(TEXT, b"x", size=bytes([126, 0, 1])), PROTOCOL_ERROR),
        (frame(TEXT, bytes(MAX_BYTES + 1)), MESSAGE_TOO_BIG),
    ],
)
def test_each_violation_has_its_close_code_and_the_next_frame_is_read(sent: bytes, code: int) -> None:
    violation, following = FrameReader(MAX_BYTES).read(sent + frame(CLOSE))
    assert isinstance(violation, Violation)
    assert violation.code == code
    assert following == Frame(CLOSE, b"")
