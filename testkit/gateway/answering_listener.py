"""A listener of the gateway's WebSockets that answers every text frame alike, in place of a gateway."""

from collections.abc import Sequence

from services.gateway.websocket.frames import CLOSE, TEXT, Frame, Violation
from services.gateway.websocket.protocol import WebSocket


class AnsweringListener:
    """Sends `answer` for each text frame, and closes the socket after a close frame or a violation."""

    __slots__ = ("_answer", "_socket")

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket: WebSocket | None = None

    def opened(self, socket: WebSocket, peer: str, forwarded: Sequence[str]) -> None:
        self._socket = socket

    def received(self, frame: Frame) -> None:
        if self._socket is not None and frame.opcode == TEXT:
            self._socket.send_text(self._answer)
        elif self._socket is not None and frame.opcode == CLOSE:
            self._socket.close()

    def violated(self, violation: Violation) -> None:
        if self._socket is not None:
            self._socket.close()

    def closed(self) -> None:
        self._socket = None

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...
