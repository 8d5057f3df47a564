"""A connection of the simulator, fed with bytes."""

import asyncio
from typing import Any, cast

import h2.config
import h2.connection

from services.apns_simulator.script import Behaviour
from services.push_simulator.connection import Http2ServerConnection, HttpRequest, ScriptedReply

REQUESTS = 1000


class AcceptingService:
    """Accepts every request at once."""

    behaviour = Behaviour(first_streams=REQUESTS, streams=REQUESTS)

    def reply_to(self, request: HttpRequest) -> ScriptedReply:
        return ScriptedReply([(":status", "200")], b"")


class RecordingTransport(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: Any) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return False


def test_many_requests_in_one_read_are_answered_piece_by_piece() -> None:
    """The library counts all open streams with each new one, so a read that opens them all takes quadratic time."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    transport = RecordingTransport()
    server = Http2ServerConnection(AcceptingService(), set())
    server.connection_made(cast(asyncio.Transport, transport))
    client.receive_data(transport.data)
    for number in range(REQUESTS):
        headers = [(":method", "POST"), (":scheme", "https"), (":path", f"/3/device/{number}"), (":authority", "a")]
        client.send_headers(2 * number + 1, headers, end_stream=True)
    transport.data = b""
    server.data_received(client.data_to_send())
    answered = [event for event in client.receive_data(transport.data) if type(event).__name__ == "ResponseReceived"]
    assert len(answered) == REQUESTS
    assert server.max_open_requests <= REQUESTS // 4
