"""Checks that a message which a device has acknowledged to a gateway is not sent to the device again."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from tests.soak.checks import Violation


class GatewayFrame(NamedTuple):
    """A text frame of one connection, when its gateway received it or sent it; `process` is that of the gateway."""

    connection: int
    process: int
    time_ms: int
    is_received: bool
    payload: bytes


class ReceivedAcknowledgement(NamedTuple):
    """An acknowledgement that a gateway has received.

    `process` is that of the gateway. `begun`: the number of connections that had begun then. `begun_ms`: when the
    connection of the acknowledgement began.
    """

    connection: int
    process: int
    begun: int
    time_ms: int
    begun_ms: int


def acknowledged_and_sent(
    frames: Iterable[GatewayFrame], must_know: Callable[[ReceivedAcknowledgement, GatewayFrame], bool]
) -> Iterator[Violation]:
    """Yield the messages sent after their acknowledgement, over the same connection or one that began later.

    `frames` in their order. `must_know`: whether delivery must have learnt of the acknowledgement when the frame was
    sent over a later connection. Over the same connection nothing may be sent again: the gateway alone prevents that.
    What comes over a connection once the device has a later one does not count.
    """
    begun: dict[int, int] = {}
    begun_ms: dict[int, int] = {}
    tokens: dict[int, str] = {}
    latest: dict[str, int] = {}
    received: dict[tuple[str, int], ReceivedAcknowledgement] = {}
    for frame in frames:
        order = begun.setdefault(frame.connection, len(begun))
        begun_ms.setdefault(frame.connection, frame.time_ms)
        content: dict[str, Any] = msgspec.json.decode(frame.payload)
        match content["type"]:
            case "welcome" if not frame.is_received:
                tokens[frame.connection] = content["token"]
                latest[content["token"]] = frame.connection
            case "ack" if frame.is_received and latest[tokens[frame.connection]] == frame.connection:
                for msgid in content["msgids"]:
                    received.setdefault(
                        (tokens[frame.connection], msgid),
                        ReceivedAcknowledgement(
                            frame.connection, frame.process, len(begun), frame.time_ms, begun_ms[frame.connection]
                        ),
                    )
            case "push" if not frame.is_received:
                token, msgid = tokens[frame.connection], content["msgid"]
                earlier = received.get((token, msgid))
                if earlier is None or (order < earlier.begun and frame.connection != earlier.connection):
                    continue
                if frame.connection == earlier.connection or must_know(earlier, frame):
                    text = f"{token} got the message {frame.time_ms - earlier.time_ms} ms after it had acknowledged it"
                    yield Violation("acknowledged", text, (msgid,))
            case _:
                pass
