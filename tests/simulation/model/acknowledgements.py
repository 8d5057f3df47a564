"""A message that a device has acknowledged to a gateway is not sent to it again."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from tests.soak.checks import Violation


class GatewayFrame(NamedTuple):
    """A text frame of one connection, when its gateway received it or sent it."""

    connection: int
    time_ms: int
    is_received: bool
    payload: bytes


class _Heard(NamedTuple):
    """An acknowledgement: its connection, how many had begun when the gateway received it, and when that was.

    `begun_ms`: when its connection began.
    """

    connection: int
    begun: int
    time_ms: int
    begun_ms: int


def acknowledged_and_sent(
    frames: Iterable[GatewayFrame], must_know: Callable[[int, int, int], bool]
) -> Iterator[Violation]:
    """Yield what was sent after its acknowledgement, over the same connection or one that began later.

    `frames` in their order. `must_know`: whether delivery must have learnt at the third time, in ms, what a gateway
    had received at the second one, over a connection that began at the first one. What comes over a connection once the
    device has a later one does not count.
    """
    begun: dict[int, int] = {}
    begun_ms: dict[int, int] = {}
    tokens: dict[int, str] = {}
    latest: dict[str, int] = {}
    heard: dict[tuple[str, int], _Heard] = {}
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
                    heard.setdefault(
                        (tokens[frame.connection], msgid),
                        _Heard(frame.connection, len(begun), frame.time_ms, begun_ms[frame.connection]),
                    )
            case "push" if not frame.is_received:
                token, msgid = tokens[frame.connection], content["msgid"]
                earlier = heard.get((token, msgid))
                if earlier is None or (order < earlier.begun and frame.connection != earlier.connection):
                    continue
                if must_know(earlier.begun_ms, earlier.time_ms, frame.time_ms):
                    text = f"{token} was sent it {frame.time_ms - earlier.time_ms} ms after its acknowledgement"
                    yield Violation("acknowledged", text, (msgid,))
            case _:
                pass
