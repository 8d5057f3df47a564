"""One request and its response on a stream (RFC 9113, section 8.1)."""

from dataclasses import dataclass, field

from services.delivery.http2.frames import Code

MAX_BODY_BYTES = 16_384
"""Limit of a response body; the rest is not read."""


class StreamError(Exception):
    """The server broke the protocol on one stream; only the stream is reset (RFC 9113, section 5.4.2)."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Stream:
    """A request in flight. `send_window`: bytes of the body the server accepts now; `unsent`: the rest of the body."""

    send_window: int
    unsent: bytes = b""
    status: int = 0
    body: bytearray = field(default_factory=bytearray)

    def receive_headers(self, status: int | None, end_stream: bool) -> None:
        """Take over a header block: informational, the response's, or trailers."""
        if self.status:
            if status is not None or not end_stream:
                raise StreamError(Code.PROTOCOL_ERROR, "headers within a body")
        elif status is None or not _is_valid(status, end_stream):
            raise StreamError(Code.PROTOCOL_ERROR, "headers without a valid status")
        elif status >= 200:
            self.status = status

    def receive_data(self, data: bytes) -> bool:
        """Append to the body; returns True if it is longer than MAX_BODY_BYTES, so that the rest is not needed."""
        if not self.status:
            raise StreamError(Code.PROTOCOL_ERROR, "a body without headers")
        self.body += data
        return len(self.body) > MAX_BODY_BYTES


def _is_valid(status: int, end_stream: bool) -> bool:
    """Return whether the status may be sent: 101 is not used in HTTP/2, and an informational one ends no stream."""
    return status != 101 and 100 <= status <= 999 and not (status < 200 and end_stream)
