"""Our end of HTTP/2 against h2, which holds every peer to the letter, and against nonsense."""

import struct

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import hpack
import pytest
from h2.settings import SettingCodes, Settings
from hypothesis import given, settings
from hypothesis import strategies as st

from services.delivery.http2.connection import ClientConnection
from services.delivery.http2.events import Event, GoAwayReceived, RequestFailed, Response
from services.delivery.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_BLOCK_BYTES,
    MAX_FRAME_BYTES,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    Code,
    ProtocolError,
    frame,
    rst_stream_frame,
    settings_frame,
    window_update_frame,
)
from services.delivery.http2.headers import HeaderError, StatusReader, literal
from services.delivery.http2.streams import MAX_BODY_BYTES
from testkit.examples import examples

BLOCK = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", b"/3/device/" + b"ab" * 32),
        (b":authority", b"localhost:1"),
        (b"authorization", b"bearer " + b"x" * 300),
    )
)
OK = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88")
HELLO = settings_frame({})


class Server:
    """h2, and what it understood. It gives windows back only when told to."""

    def __init__(self, window: int, streams: int, table_bytes: int) -> None:
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        first = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_CONCURRENT_STREAMS: streams}
        self.h2.local_settings = Settings(client=False, initial_values=first)
        self.h2.initiate_connection()
        self.h2.encoder.header_table_size = table_bytes
        self.bodies: dict[int, bytearray] = {}
        self.whole: list[int] = []
        self.taken_back: set[int] = set()
        self.unacknowledged: list[tuple[int, int]] = []
        self.pings = 0

    def take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.RequestReceived(stream_id=stream, headers=headers):
                    assert (":path", "/3/device/" + "ab" * 32) in [(str(name), str(value)) for name, value in headers]
                    self.bodies[stream] = bytearray()
                case h2.events.DataReceived(stream_id=stream, data=piece, flow_controlled_length=length):
                    self.bodies[stream] += piece
                    self.unacknowledged.append((length, stream))
                case h2.events.StreamEnded(stream_id=stream):
                    self.whole.append(stream)
                case h2.events.StreamReset(stream_id=stream):
                    self.taken_back.add(stream)
                case h2.events.PingReceived():
                    self.pings += 1
                case h2.events.ConnectionTerminated():
                    raise AssertionError("the client gave up")
                case _:
                    pass

    def give_back(self) -> None:
        for length, stream in self.unacknowledged:
            self.h2.acknowledge_received_data(length, stream)
        self.unacknowledged.clear()


class Talk:
    """Both ends, and what is in between, which arrives in pieces of any size."""

    def __init__(self, server: Server, piece_bytes: int) -> None:
        self.server = server
        self.client = ClientConnection()
        self.events: list[Event] = []
        self._piece_bytes = piece_bytes

    def settle(self) -> None:
        """Let everything that was said arrive."""
        while self.client.out or (said := self.server.h2.data_to_send()):
            if self.client.out:
                self.server.take(bytes(self.client.out))
                self.client.out.clear()
                continue
            for at in range(0, len(said), self._piece_bytes):
                self.events += self.client.receive(said[at : at + self._piece_bytes])


answers = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["answer", "answer", "answer", "reset", "refuse"]),
        "status": st.sampled_from([200, 204, 206, 304, 400, 403, 404, 410, 413, 429, 500, 503]),
        "body": st.binary(max_size=300),
        "pieces": st.integers(1, 4),
        "padding": st.none() | st.integers(0, 255),
        "informed": st.booleans(),
        "trailers": st.booleans(),
        "long_headers": st.booleans(),
        "order": st.integers(),
    }
)


def give_answer(server: Server, stream: int, answer: dict[str, object]) -> Event:
    """Let the server answer; what the client should make of it."""
    conn = server.h2
    if answer["kind"] in ("reset", "refuse"):
        code = Code.REFUSED_STREAM if answer["kind"] == "refuse" else Code.INTERNAL_ERROR
        conn.reset_stream(stream, int(code))
        return RequestFailed(stream, f"reset: {code.name}", code != Code.REFUSED_STREAM)
    body = bytes(answer["body"])  # type: ignore[call-overload]
    if answer["informed"]:
        conn.send_headers(stream, [(":status", "103"), ("link", "x")])
    headers = [(":status", str(answer["status"])), ("apns-id", f"id-{stream}")]
    if answer["long_headers"]:
        headers.append(("x-long", "z~" * 3000))
    trailers = bool(answer["trailers"])
    conn.send_headers(stream, headers, end_stream=not body and not trailers)
    if body:
        size = -(-len(body) // int(answer["pieces"]))  # type: ignore[call-overload]
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces) and not trailers
            conn.send_data(stream, piece, end_stream=last, pad_length=answer["padding"])
    if trailers:
        conn.send_headers(stream, [("x-trailer", "t")], end_stream=True)
    return Response(stream, int(answer["status"]), body)  # type: ignore[call-overload]


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
def test_h2_and_the_client_understand_each_other(
    given_answers: list[dict[str, object]],
    window: int,
    streams: int,
    table_bytes: int,
    piece_bytes: int,
    body: bytes,
    later_window: int,
) -> None:
    server = Server(window, streams, table_bytes)
    talk = Talk(server, piece_bytes)
    talk.settle()
    assert talk.client.free_streams == streams
    meant: list[Event] = []
    waiting = list(given_answers)
    opened: list[int] = []
    while waiting:
        while talk.client.free_streams and len(opened) < len(waiting):
            opened.append(talk.client.request(BLOCK, body))
        talk.settle()
        server.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: later_window})
        talk.settle()
        while len(server.whole) < len(opened):
            server.give_back()
            talk.settle()
        assert all(server.bodies[stream] == body for stream in opened)
        for stream, answer in sorted(zip(opened, waiting, strict=False), key=lambda item: str(item[1]["order"])):
            meant.append(give_answer(server, stream, answer))
        del waiting[: len(opened)]
        opened.clear()
        server.whole.clear()
        talk.settle()
    assert talk.events == meant
    assert talk.client.open_streams == 0


def test_what_the_client_takes_back_and_a_late_answer() -> None:
    talk = Talk(Server(65_535, 10, 4096), 1000)
    talk.settle()
    stream = talk.client.request(BLOCK, b"{}")
    talk.settle()
    server = talk.server.h2
    server.send_headers(stream, [(":status", "410"), ("x-new", "in the table")])
    server.send_data(stream, b"late", end_stream=True)
    talk.client.cancel(stream)
    talk.settle()
    again = talk.client.request(BLOCK, b"{}")
    talk.settle()
    server.send_headers(again, [(":status", "410"), ("x-new", "in the table")], end_stream=True)
    talk.settle()
    assert talk.events == [Response(again, 410, b"")]


def test_pings_are_answered_and_answers_to_pings_are_heard() -> None:
    talk = Talk(Server(65_535, 10, 4096), 1000)
    talk.settle()
    talk.client.ping()
    assert talk.client.unanswered_pings == 1
    talk.server.h2.ping(b"12345678")
    talk.settle()
    assert (talk.client.unanswered_pings, talk.server.pings) == (0, 1)


def test_an_endless_stream_of_refusals_fits_through_the_windows() -> None:
    """More bytes of bodies than any window holds, each acknowledged."""
    talk = Talk(Server(65_535, 100, 0), 100_000)
    talk.settle()
    for _ in range(60):
        streams = [talk.client.request(BLOCK, b"{}") for _ in range(100)]
        talk.settle()
        for stream in streams:
            talk.server.h2.send_headers(stream, [(":status", "410")])
            talk.server.h2.send_data(stream, b"x" * 500, end_stream=True)
        talk.settle()
    assert len(talk.events) == 6000


def test_a_goodbye_leaves_answers_to_come_and_gives_the_rest_back() -> None:
    client = greeted(streams=10)
    streams = [client.request(BLOCK, b"{}") for _ in range(3)]
    events = client.receive(frame(GOAWAY, 0, 0, struct.pack("!II", streams[0], 0) + b"bye"))
    assert events == [
        RequestFailed(streams[1], "the server sent GOAWAY before the request", False),
        RequestFailed(streams[2], "the server sent GOAWAY before the request", False),
        GoAwayReceived(0, "bye"),
    ]
    assert client.free_streams == 0
    assert client.receive(OK) == [Response(1, 200, b"")]


def test_an_answer_before_the_request_is_complete_ends_it() -> None:
    client = ClientConnection()
    client.receive(settings_frame({4: 0}))
    client.request(BLOCK, b"{}")
    client.out.clear()
    assert not client.is_sent(1)
    assert client.receive(OK) == [Response(1, 200, b"")]
    assert client.out == rst_stream_frame(1, Code.NO_ERROR)


def test_of_a_long_body_the_beginning_is_read() -> None:
    client = greeted()
    client.request(BLOCK, b"{}")
    client.out.clear()
    data = frame(HEADERS, END_HEADERS, 1, b"\x8c") + frame(DATA, 0, 1, b"x" * MAX_FRAME_BYTES) + frame(DATA, 0, 1, b"y")
    assert client.receive(data) == [Response(1, 400, b"x" * MAX_BODY_BYTES)]
    assert client.out == rst_stream_frame(1, Code.CANCEL)
    assert client.receive(frame(DATA, END_STREAM, 1, b"more")) == []


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (frame(DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 2, b"x"), Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 99, b"x"), Code.PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b"\x05x"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 3, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xff"), Code.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xbe"), Code.COMPRESSION_ERROR),
        (frame(HEADERS, 0, 1, b"\x88") + frame(PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, b"\x88") + frame(CONTINUATION, END_HEADERS, 3), Code.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, bytes(MAX_FRAME_BYTES)) * 5, Code.ENHANCE_YOUR_CALM),
        (frame(CONTINUATION, END_HEADERS, 1, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(5)), Code.PROTOCOL_ERROR),
        (frame(PING, 0, 0, b"short"), Code.FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 1, b"1"), Code.FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 1, b"1"), Code.FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 5, bytes(4)), Code.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, b"12345"), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
        (settings_frame({2: 1}), Code.PROTOCOL_ERROR),
        (settings_frame({4: 1 << 31}), Code.FLOW_CONTROL_ERROR),
        (settings_frame({5: 1}), Code.PROTOCOL_ERROR),
        (window_update_frame(0, 0), Code.PROTOCOL_ERROR),
        (window_update_frame(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
        (frame(GOAWAY, 0, 0, b"1"), Code.FRAME_SIZE_ERROR),
        (struct.pack("!HBBBI", 256, 0, 0, 0, 1), Code.FRAME_SIZE_ERROR),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_told_so(said: bytes, code: Code) -> None:
    client = greeted()
    client.request(BLOCK, b"{}")
    client.out.clear()
    with pytest.raises(ProtocolError) as caught:
        client.receive(said)
    assert caught.value.code == code
    assert bytes(client.out).endswith(frame(GOAWAY, 0, 0, struct.pack("!II", 0, code)))


@pytest.mark.parametrize("first", [OK, frame(SETTINGS, ACK, 0), frame(PING, 0, 0, bytes(8))])
def test_settings_come_first(first: bytes) -> None:
    with pytest.raises(ProtocolError):
        ClientConnection().receive(first)


@pytest.mark.parametrize(
    "said",
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
def test_a_stream_that_makes_no_sense_is_reset_and_the_connection_lives(said: bytes) -> None:
    client = greeted()
    client.request(BLOCK, b"{}")
    (event,) = client.receive(said)
    assert isinstance(event, RequestFailed)
    assert event.processed
    assert frame(RST_STREAM, 0, 1)[3:][:1] in bytes(client.out)
    client.request(BLOCK, b"{}")
    assert client.receive(frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x88")) == [Response(3, 200, b"")]


@settings(max_examples=examples(300))
@given(st.binary(max_size=300), st.integers(1, 50))
def test_nonsense_is_refused_and_nothing_worse(data: bytes, piece_bytes: int) -> None:
    client = greeted()
    client.request(BLOCK, b"{}")
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
def test_frames_at_random_are_refused_or_understood(frames: list[bytes]) -> None:
    """Every request ends at most once."""
    client = greeted(streams=10)
    for _ in range(3):
        client.request(BLOCK, b"{}")
    ended = []
    try:
        for said in frames:
            ended += [event.stream for event in client.receive(said) if not isinstance(event, GoAwayReceived)]
    except ProtocolError:
        pass
    assert len(ended) == len(set(ended))
    assert set(ended) <= {1, 3, 5}


header_lists = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([":status", "apns-id", "content-type", "date", "x-new"]),
            st.sampled_from(["200", "410", "503"]) | st.text("abcdef0123-", max_size=140),
        ),
        max_size=5,
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(300))
@given(header_lists, st.sampled_from([0, 64, 4096]), st.booleans(), st.booleans())
def test_statuses_are_read_as_hpack_reads_them(
    lists: list[list[tuple[str, str]]], table_bytes: int, huffman: bool, sensitive: bool
) -> None:
    encoder, decoder, reader = hpack.Encoder(), hpack.Decoder(), StatusReader()
    encoder.header_table_size = table_bytes
    for fields in lists:
        kind = hpack.NeverIndexedHeaderTuple if sensitive else hpack.HeaderTuple
        block = encoder.encode([kind(name, value) for name, value in fields], huffman=huffman)
        found = [value for name, value in decoder.decode(block) if str(name) == ":status"]
        number = int(found[0]) if len(found) == 1 and len(found[0]) == 3 and found[0].isdigit() else None
        assert reader.status(block) in ((number,) if number else (None, 0))


@settings(max_examples=examples(300))
@given(st.binary(max_size=60))
def test_any_block_has_a_status_or_none_or_is_refused(block: bytes) -> None:
    reader = StatusReader()
    try:
        status = reader.status(block)
    except HeaderError:
        return
    assert status is None or 0 <= status <= 999


@given(st.binary(min_size=1, max_size=20), st.integers(0, 400), st.booleans())
def test_literals_are_headers_to_hpack(name: bytes, length: int, secret: bool) -> None:
    assert hpack.Decoder().decode(literal(name, b"v" * length, secret), raw=True) == [(name, b"v" * length)]


def test_a_block_longer_than_a_frame_goes_in_pieces() -> None:
    talk = Talk(Server(65_535, 10, 0), 1000)
    talk.settle()
    long = literal(b"x-long", b"v" * 2 * MAX_FRAME_BYTES)
    assert len(long) < MAX_BLOCK_BYTES
    talk.client.request(BLOCK + long, b"{}")
    talk.settle()
    assert talk.server.whole == [1]


def greeted(streams: int = 100) -> ClientConnection:
    client = ClientConnection()
    client.receive(settings_frame({3: streams}))
    return client
