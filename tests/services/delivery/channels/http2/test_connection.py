"""GOAWAY, early responses and long responses."""

import struct

from services.delivery.channels.http2.connection import MAX_BODY_BYTES, ClientConnection
from services.delivery.channels.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_BYTES,
    GoAwayReceived,
    Http2Code,
    RequestFailed,
    Response,
    frame,
    rst_stream_frame,
    settings_frame,
)
from testkit.delivery.http2 import REQUEST_HEADERS, ready_client

RESPONSE_200 = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88")


def test_after_goaway_earlier_requests_are_answered_and_later_ones_fail_unprocessed() -> None:
    client = ready_client(streams=10)
    streams = [client.request(REQUEST_HEADERS, b"{}") for _ in range(3)]
    events = client.receive(frame(GOAWAY, 0, 0, struct.pack("!II", streams[0], 0) + b"bye"))
    assert events == [
        RequestFailed(streams[1], "the server sent GOAWAY before the request", False),
        RequestFailed(streams[2], "the server sent GOAWAY before the request", False),
        GoAwayReceived(0, "bye"),
    ]
    assert client.free_streams == 0
    assert client.receive(RESPONSE_200) == [Response(1, 200, b"")]


def test_a_response_before_the_request_is_written_ends_the_request() -> None:
    client = ClientConnection()
    client.receive(settings_frame({INITIAL_WINDOW_SIZE: 0}))
    client.request(REQUEST_HEADERS, b"{}")
    client.out.clear()
    assert not client.is_sent(1)
    assert client.receive(RESPONSE_200) == [Response(1, 200, b"")]
    assert client.out == rst_stream_frame(1, Http2Code.NO_ERROR)


def test_a_long_response_body_is_cut() -> None:
    client = ready_client()
    client.request(REQUEST_HEADERS, b"{}")
    client.out.clear()
    data = frame(HEADERS, END_HEADERS, 1, b"\x8c") + frame(DATA, 0, 1, b"x" * MAX_FRAME_BYTES) + frame(DATA, 0, 1, b"y")
    assert client.receive(data) == [Response(1, 400, b"x" * MAX_BODY_BYTES)]
    assert client.out == rst_stream_frame(1, Http2Code.CANCEL)
    assert client.receive(frame(DATA, END_STREAM, 1, b"more")) == []
