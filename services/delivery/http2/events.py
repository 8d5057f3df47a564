"""Events that a connection reports to its owner about the requests on it."""

from typing import NamedTuple


class Response(NamedTuple):
    """A complete response; `body` is cut at MAX_BODY_BYTES."""

    stream: int
    status: int
    body: bytes


class RequestFailed(NamedTuple):
    """The stream ended without a response. `processed` is False if the server certainly did not act on the request."""

    stream: int
    reason: str
    processed: bool


class GoAwayReceived(NamedTuple):
    """The server accepts no more requests on this connection; the remaining in-flight ones are still answered."""

    code: int
    text: str


Event = Response | RequestFailed | GoAwayReceived
