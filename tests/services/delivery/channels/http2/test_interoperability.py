"""The HTTP/2 client against the h2 package's server."""

from typing import Literal, NamedTuple

from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from services.delivery.channels.http2.frames import (
    MAX_BLOCK_BYTES,
    MAX_FRAME_BYTES,
    Event,
    Http2Code,
    RequestFailed,
    Response,
)
from services.delivery.channels.http2.headers import literal
from testkit.delivery.http2 import REQUEST_HEADERS, Exchange, H2Server
from testkit.examples import examples


class Answer(NamedTuple):
    """The server's answer to a request; `order` sorts the answers to concurrent requests."""

    kind: Literal["response", "reset", "refuse"]
    status: int
    body: bytes
    pieces: int
    padding: int | None
    informational: bool
    trailers: bool
    long_headers: bool
    order: int


answers = st.builds(
    Answer,
    kind=st.sampled_from(["response", "response", "response", "reset", "refuse"]),
    status=st.sampled_from([200, 204, 206, 304, 400, 403, 404, 410, 413, 429, 500, 503]),
    body=st.binary(max_size=300),
    pieces=st.integers(1, 4),
    padding=st.none() | st.integers(0, 255),
    informational=st.booleans(),
    trailers=st.booleans(),
    long_headers=st.booleans(),
    order=st.integers(),
)


def send_answer(server: H2Server, stream: int, answer: Answer) -> Event:
    """Let the server answer; returns the event that the client has to report."""
    h2 = server.h2
    if answer.kind != "response":
        code = Http2Code.REFUSED_STREAM if answer.kind == "refuse" else Http2Code.INTERNAL_ERROR
        h2.reset_stream(stream, int(code))
        return RequestFailed(stream, f"reset: {code.name}", code != Http2Code.REFUSED_STREAM)
    if answer.informational:
        h2.send_headers(stream, [(":status", "103"), ("link", "x")])
    headers = [(":status", str(answer.status)), ("apns-id", f"id-{stream}")]
    if answer.long_headers:
        headers.append(("x-long", "z~" * 3000))
    h2.send_headers(stream, headers, end_stream=not answer.body and not answer.trailers)
    if answer.body:
        size = -(-len(answer.body) // answer.pieces)
        pieces = [answer.body[at : at + size] for at in range(0, len(answer.body), size)]
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces) and not answer.trailers
            h2.send_data(stream, piece, end_stream=last, pad_length=answer.padding)
    if answer.trailers:
        h2.send_headers(stream, [("x-trailer", "t")], end_stream=True)
    return Response(stream, answer.status, answer.body)


@settings(max_examples=examples(150))
@given(
    given_answers=st.lists(answers, min_size=1, max_size=12),
    window=st.sampled_from([1, 7, 100, 65_535]),
    streams=st.integers(1, 6),
    table_bytes=st.sampled_from([0, 100, 4096]),
    piece_bytes=st.sampled_from([1, 3, 10, 100_000]),
    body=st.sampled_from([b"", b"{}", b"x" * 101, b"y" * 400]),
    later_window=st.sampled_from([1, 5, 1000]),
)
def test_requests_and_answers_arrive_unchanged(
    given_answers: list[Answer],
    window: int,
    streams: int,
    table_bytes: int,
    piece_bytes: int,
    body: bytes,
    later_window: int,
) -> None:
    server = H2Server(window, streams, table_bytes)
    exchange = Exchange(server, piece_bytes)
    assert exchange.client.free_streams == streams
    expected: list[Event] = []
    remaining = list(given_answers)
    opened: list[int] = []
    while remaining:
        while exchange.client.free_streams and len(opened) < len(remaining):
            opened.append(exchange.client.request(REQUEST_HEADERS, body))
        exchange.transfer()
        server.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: later_window})
        exchange.transfer()
        while len(server.complete) < len(opened):
            server.acknowledge_data()
            exchange.transfer()
        assert all(server.bodies[stream] == body for stream in opened)
        for stream, answer in sorted(zip(opened, remaining, strict=False), key=lambda item: str(item[1].order)):
            expected.append(send_answer(server, stream, answer))
        del remaining[: len(opened)]
        opened.clear()
        server.complete.clear()
        exchange.transfer()
    assert exchange.events == expected
    assert exchange.client.open_streams == 0


def test_the_response_to_a_cancelled_request_is_ignored() -> None:
    """The second response has the same headers, which the first one added to the dynamic table."""
    exchange = Exchange(H2Server(65_535, 10, 4096))
    stream = exchange.client.request(REQUEST_HEADERS, b"{}")
    exchange.transfer()
    server = exchange.server.h2
    server.send_headers(stream, [(":status", "410"), ("x-new", "in the table")])
    server.send_data(stream, b"late", end_stream=True)
    exchange.client.cancel(stream)
    exchange.transfer()
    again = exchange.client.request(REQUEST_HEADERS, b"{}")
    exchange.transfer()
    server.send_headers(again, [(":status", "410"), ("x-new", "in the table")], end_stream=True)
    exchange.transfer()
    assert exchange.events == [Response(again, 410, b"")]


def test_pings_are_acknowledged_in_both_directions() -> None:
    exchange = Exchange(H2Server(65_535, 10, 4096))
    exchange.client.ping()
    assert exchange.client.unanswered_pings == 1
    exchange.server.h2.ping(b"12345678")
    exchange.transfer()
    assert (exchange.client.unanswered_pings, exchange.server.pings) == (0, 1)


def test_response_bodies_beyond_the_receive_window_arrive() -> None:
    """6000 bodies of 500 bytes are more than the connection's receive window, which the client has to widen."""
    exchange = Exchange(H2Server(65_535, 100, 0), 100_000)
    for _ in range(60):
        streams = [exchange.client.request(REQUEST_HEADERS, b"{}") for _ in range(100)]
        exchange.transfer()
        for stream in streams:
            exchange.server.h2.send_headers(stream, [(":status", "410")])
            exchange.server.h2.send_data(stream, b"x" * 500, end_stream=True)
        exchange.transfer()
    assert len(exchange.events) == 6000


def test_a_header_block_longer_than_a_frame_is_continued() -> None:
    exchange = Exchange(H2Server(65_535, 10, 0))
    long = literal(b"x-long", b"v" * 2 * MAX_FRAME_BYTES)
    assert len(long) < MAX_BLOCK_BYTES
    exchange.client.request(REQUEST_HEADERS + long, b"{}")
    exchange.transfer()
    assert exchange.server.complete == [1]
