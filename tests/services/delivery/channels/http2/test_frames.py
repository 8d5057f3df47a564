"""Violations of HTTP/2 by the server, and random input."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.delivery.channels.http2.connection import ClientConnection
from services.delivery.channels.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    GoAwayReceived,
    Http2Code,
    ProtocolError,
    RequestFailed,
    Response,
    frame,
    rst_stream_frame,
    settings_frame,
    window_update_frame,
)
from services.delivery.channels.http2.headers import literal
from testkit.delivery.http2 import REQUEST_HEADERS, ready_client
from testkit.examples import examples

RESPONSE_200 = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88")


@pytest.mark.parametrize(
    ("received", "code"),
    [
        (frame(DATA, 0, 0, b"x"), Http2Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 2, b"x"), Http2Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 99, b"x"), Http2Code.PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b"\x05x"), Http2Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 3, b"\x88"), Http2Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xff"), Http2Code.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xbe"), Http2Code.COMPRESSION_ERROR),
        (frame(HEADERS, 0, 1, b"\x88") + frame(PING, 0, 0, bytes(8)), Http2Code.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, b"\x88") + frame(CONTINUATION, END_HEADERS, 3), Http2Code.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, bytes(MAX_FRAME_BYTES)) * 5, Http2Code.ENHANCE_YOUR_CALM),
        (frame(CONTINUATION, END_HEADERS, 1, b"\x88"), Http2Code.PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(5)), Http2Code.PROTOCOL_ERROR),
        (frame(PING, 0, 0, b"short"), Http2Code.FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, bytes(8)), Http2Code.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 1, b"1"), Http2Code.FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 1, b"1"), Http2Code.FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 5, bytes(4)), Http2Code.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, b"12345"), Http2Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), Http2Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), Http2Code.PROTOCOL_ERROR),
        (settings_frame({ENABLE_PUSH: 1}), Http2Code.PROTOCOL_ERROR),
        (settings_frame({INITIAL_WINDOW_SIZE: 1 << 31}), Http2Code.FLOW_CONTROL_ERROR),
        (settings_frame({MAX_FRAME_SIZE: 1}), Http2Code.PROTOCOL_ERROR),
        (window_update_frame(0, 0), Http2Code.PROTOCOL_ERROR),
        (window_update_frame(0, 2**31 - 1), Http2Code.FLOW_CONTROL_ERROR),
        (frame(GOAWAY, 0, 0, b"1"), Http2Code.FRAME_SIZE_ERROR),
        (struct.pack("!HBBBI", 256, 0, 0, 0, 1), Http2Code.FRAME_SIZE_ERROR),
    ],
)
def test_a_connection_error_is_answered_with_goaway(received: bytes, code: Http2Code) -> None:
    client = ready_client()
    client.request(REQUEST_HEADERS, b"{}")
    client.out.clear()
    with pytest.raises(ProtocolError) as caught:
        client.receive(received)
    assert caught.value.code == code
    assert bytes(client.out).endswith(frame(GOAWAY, 0, 0, struct.pack("!II", 0, code)))


@pytest.mark.parametrize("first", [RESPONSE_200, frame(SETTINGS, ACK, 0), frame(PING, 0, 0, bytes(8))])
def test_the_first_frame_must_be_settings(first: bytes) -> None:
    with pytest.raises(ProtocolError):
        ClientConnection().receive(first)


@pytest.mark.parametrize(
    "received",
    [
        frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(b"no", b"status")),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88\x88"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(b":status", b"abc")),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, literal(b":status", b"103")),
        frame(HEADERS, END_HEADERS, 1, b"\x88") + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88"),
        frame(DATA, END_STREAM, 1, b"x"),
        window_update_frame(1, 2**31 - 1),
        window_update_frame(1, 0),
    ],
)
def test_a_stream_error_resets_the_stream_only(received: bytes) -> None:
    client = ready_client()
    client.request(REQUEST_HEADERS, b"{}")
    (event,) = client.receive(received)
    assert isinstance(event, RequestFailed)
    assert event.processed
    assert rst_stream_frame(1, 0)[:9] in bytes(client.out)
    client.request(REQUEST_HEADERS, b"{}")
    assert client.receive(frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x88")) == [Response(3, 200, b"")]


@settings(max_examples=examples(300))
@given(st.binary(max_size=300), st.integers(1, 50))
def test_random_bytes_raise_at_most_a_protocol_error(data: bytes, piece_bytes: int) -> None:
    client = ready_client()
    client.request(REQUEST_HEADERS, b"{}")
    try:
        for at in range(0, len(data), piece_bytes):
            client.receive(data[at : at + piece_bytes])
    except ProtocolError:
        assert bytes(client.out[-17:-8]) == frame(GOAWAY, 0, 0, bytes(8))[:9]


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.builds(
            frame,
            st.integers(0, 11),
            st.integers(0, 255),
            st.sampled_from([0, 1, 1, 3, 5, 2]),
            st.binary(max_size=40)
            | st.sampled_from([b"\x88", bytes(4), bytes(5), bytes(8), bytes(6), b"\x00\x00\x00\x05"]),
        ),
        max_size=20,
    )
)
def test_random_frames_end_each_request_at_most_once(frames: list[bytes]) -> None:
    client = ready_client(streams=10)
    for _ in range(3):
        client.request(REQUEST_HEADERS, b"{}")
    ended = []
    try:
        for received in frames:
            ended += [event.stream for event in client.receive(received) if not isinstance(event, GoAwayReceived)]
    except ProtocolError:
        pass
    assert len(ended) == len(set(ended))
    assert set(ended) <= {1, 3, 5}
