"""An HTTP/2 server by the h2 package, which enforces the protocol strictly, connected to the client in memory."""

import h2.config
import h2.connection
import h2.events
from h2.settings import SettingCodes, Settings

from services.delivery.channels.http2.connection import ClientConnection
from services.delivery.channels.http2.frames import MAX_CONCURRENT_STREAMS, Event, settings_frame
from services.delivery.channels.http2.headers import literal

_PATH = "/3/device/" + "ab" * 32
REQUEST_HEADERS = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", _PATH.encode()),
        (b":authority", b"localhost:1"),
        (b"authorization", b"bearer " + b"x" * 300),
    )
)


class H2Server:
    """The server's end, with the requests it received. It widens flow-control windows only in `acknowledge_data`."""

    def __init__(self, window: int, streams: int, table_bytes: int) -> None:
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        first = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_CONCURRENT_STREAMS: streams}
        self.h2.local_settings = Settings(client=False, initial_values=first)
        self.h2.initiate_connection()
        self.h2.encoder.header_table_size = table_bytes
        self.bodies: dict[int, bytearray] = {}
        self.complete: list[int] = []
        self.pings = 0
        self._unacknowledged: list[tuple[int, int]] = []

    def receive(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.RequestReceived(stream_id=stream, headers=headers):
                    assert (":path", _PATH) in [(str(name), str(value)) for name, value in headers]
                    self.bodies[stream] = bytearray()
                case h2.events.DataReceived(stream_id=stream, data=piece, flow_controlled_length=length):
                    self.bodies[stream] += piece
                    self._unacknowledged.append((length, stream))
                case h2.events.StreamEnded(stream_id=stream):
                    self.complete.append(stream)
                case h2.events.PingReceived():
                    self.pings += 1
                case h2.events.ConnectionTerminated():
                    raise AssertionError("the client closed the connection")
                case _:
                    pass

    def acknowledge_data(self) -> None:
        for length, stream in self._unacknowledged:
            self.h2.acknowledge_received_data(length, stream)
        self._unacknowledged.clear()


class Exchange:
    """A client and a server; the client receives the server's bytes in pieces of `piece_bytes`."""

    def __init__(self, server: H2Server, piece_bytes: int = 1000) -> None:
        self.server = server
        self.client = ClientConnection()
        self.events: list[Event] = []
        self._piece_bytes = piece_bytes
        self.transfer()

    def transfer(self) -> None:
        """Pass bytes in both directions until neither end has any to send."""
        while self.client.out or (sent := self.server.h2.data_to_send()):
            if self.client.out:
                self.server.receive(bytes(self.client.out))
                self.client.out.clear()
                continue
            for at in range(0, len(sent), self._piece_bytes):
                self.events += self.client.receive(sent[at : at + self._piece_bytes])


def ready_client(streams: int = 100) -> ClientConnection:
    """Return a client that has received the server's settings."""
    client = ClientConnection()
    client.receive(settings_frame({MAX_CONCURRENT_STREAMS: streams}))
    return client
