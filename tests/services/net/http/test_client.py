"""A client connection: one timer for the requests that it sends one after the other."""

from typing import Any

from services.net.http.client import ANSWER_S, HttpAnswer, HttpClientConnection, NoAnswerError

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Transport:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False


async def test_the_time_for_an_answer_begins_with_its_own_request() -> None:
    found: list[HttpAnswer | NoAnswerError] = []
    transport: Any = Transport()
    connection = HttpClientConnection()
    connection.connection_made(transport)
    connection.send(b"first", found.append)
    connection.data_received(ANSWER)
    connection._deadline_s -= ANSWER_S  # the first request was long ago
    connection.send(b"second", found.append)
    assert transport.written == [b"first", b"second"]
    timer = connection._timer
    connection._check_deadline()
    assert found == [HttpAnswer(204, {}, b"")]
    assert connection._timer is not timer
    connection._deadline_s -= ANSWER_S
    connection._check_deadline()
    assert str(found[1]) == "no answer within 10 s"
    assert not connection.is_usable
    assert connection._timer is None


async def test_the_end_of_a_connection_ends_its_request_and_its_timer() -> None:
    found: list[HttpAnswer | NoAnswerError] = []
    transport: Any = Transport()
    connection = HttpClientConnection()
    connection.connection_made(transport)
    connection.send(b"first", found.append)
    timer = connection._timer
    connection.connection_lost(None)
    connection.connection_lost(None)
    assert list(map(str, found)) == ["connection lost: closed by the service"]
    assert timer is not None
    assert timer.cancelled()
