"""Requests in flight on a connection to Apple, and the time-outs that apply to them."""

from collections.abc import Iterator
from typing import NamedTuple

from services.delivery.apns.push import PendingPush


class Timeouts(NamedTuple):
    """The time-outs of a connection, in seconds.

    `connect`: to open a connection. `request`: for a response. `probe`: for a response on a connection where no push
    has been accepted yet; further pushes wait for it. `silence`: without bytes from the server, until a ping.
    `pong`: for the acknowledgement of a ping. `idle`: without a request, until the connection is closed.
    """

    connect: float = 5.0
    request: float = 20.0
    probe: float = 5.0
    silence: float = 60.0
    pong: float = 10.0
    idle: float = 1800.0


class InFlightRequest(NamedTuple):
    """A request without a response yet; `deadline_s` in the event loop's time."""

    pending: PendingPush
    provider_token: str
    deadline_s: float


class InFlightRequests:
    """Requests by stream id, in the order of their deadlines.

    The order holds because a probe, whose time-out is shorter, is the only request while it is in flight.
    """

    def __init__(self) -> None:
        self._by_stream: dict[int, InFlightRequest] = {}

    def __len__(self) -> int:
        return len(self._by_stream)

    def add(self, stream: int, request: InFlightRequest) -> None:
        self._by_stream[stream] = request

    def pop(self, stream: int) -> InFlightRequest | None:
        return self._by_stream.pop(stream, None)

    def take_overdue(self, now_s: float) -> list[tuple[int, InFlightRequest]]:
        """Remove and return the requests whose deadline has passed."""
        overdue = list(self._overdue(now_s))
        for stream, _ in overdue:
            del self._by_stream[stream]
        return overdue

    def take_all(self) -> list[tuple[int, InFlightRequest]]:
        """Remove and return every request."""
        requests, self._by_stream = self._by_stream, {}
        return list(requests.items())

    def _overdue(self, now_s: float) -> Iterator[tuple[int, InFlightRequest]]:
        for stream, request in self._by_stream.items():
            if request.deadline_s > now_s:
                return
            yield stream, request
