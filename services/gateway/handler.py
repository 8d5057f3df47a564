"""The interface of the handlers of a device connection's frames."""

from typing import Generic, TypeVar

Connection = TypeVar("Connection")


class Handler(Generic[Connection]):
    """Handles a connection in one stage of its life: `Handshake` before the welcome, `SessionHandler` after it."""

    def opened(self, connection: Connection) -> None:
        """The WebSocket is open."""

    def received(self, connection: Connection, payload: bytes) -> None:
        """A text message is complete."""
        raise NotImplementedError

    def answered_ping(self, connection: Connection, payload: bytes) -> None:
        """A pong came, whether or not it answers a ping."""

    def closing(self, connection: Connection, reason: str) -> None:
        """No further frame is sent over the connection; called once. `reason`: "" if the device closed it properly."""
