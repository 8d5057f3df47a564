"""Push frames, whose JSON is encoded once for all connections that get the message; and bursts: broadcasts that wait
for the same connections and are written to each of them together.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from protos.push.v1.push_pb2 import Message
from services.domain.device_protocol.pushes import PushText, push_fields
from services.gateway.websocket.frames import TEXT, encode


class PushFrames:
    """The frames of one message, which differ in the message id only. `expires_ms` is in ms since 1970."""

    def __init__(self, message: Message, expires_ms: int) -> None:
        self._push = PushText(push_fields(message, expires_ms))

    def text(self, msgid: int) -> bytes:
        return self._push.text(msgid)

    def frame(self, msgid: int) -> bytes:
        """Return the complete WebSocket frame of the text."""
        return encode(TEXT, self.text(msgid))


# Bursts: broadcasts that wait to be written to the same connections, each of which gets them in one write.
#
# Most of a frame's cost is the kernel's `send`, so five broadcasts in a row cost little more than one.

SLICE = 100
"""Connections that are written to in one step of the event loop."""

MAX_MESSAGES = 8
"""Messages of one burst that wait at the same time."""

MAX_BYTES = 32 * 1024
"""Upper bound of the frames of one burst that wait at the same time; a single one may be larger."""


class SharedMessage:
    """A message of a burst; `slices_left`: the number of slices of connections that it is still to be written to."""

    __slots__ = ("expires_ms", "frame", "msgid", "slices_left")

    def __init__(self, frame: bytes, msgid: int, expires_ms: int, slices: int) -> None:
        """`frame`: a complete WebSocket frame, see `PushFrames.frame`."""
        self.frame = frame
        self.msgid = msgid
        self.expires_ms = expires_ms
        self.slices_left = slices


class BurstPart(NamedTuple):
    """Connections, and the messages that are to be written to them now, in this order."""

    connections: Sequence[int]
    messages: Sequence[SharedMessage]


class Burst:
    """Messages for the same connections, taken slice by slice.

    A message that is added while others wait is written together with them from the next slice on, and later alone to
    the slices before. So each connection gets the messages in the order in which they were added.
    """

    def __init__(self, connections: Sequence[int]) -> None:
        self._slices = [connections[start : start + SLICE] for start in range(0, len(connections), SLICE)]
        self._next = self._steps = 0
        self._messages: deque[SharedMessage] = deque()

    @property
    def messages(self) -> Sequence[SharedMessage]:
        """The messages that wait."""
        return self._messages

    @property
    def frames_left(self) -> int:
        """The number of frames that wait: each message is one for each connection."""
        return sum(map(self._frames_left, self._messages))

    def may_add(self, frame: bytes) -> bool:
        waiting_bytes = sum(len(message.frame) for message in self._messages)
        return not self._messages or (len(self._messages) < MAX_MESSAGES and waiting_bytes + len(frame) <= MAX_BYTES)

    def add(self, frame: bytes, msgid: int, expires_ms: int) -> int:
        """Add a message. Return how many more calls of `take` it needs than the messages before it."""
        self._messages.append(SharedMessage(frame, msgid, expires_ms, len(self._slices)))
        added, self._steps = len(self._slices) - self._steps, len(self._slices)
        return added

    def take(self) -> BurstPart:
        """Return the next slice with the messages that wait for it, and count them as written to it."""
        connections = self._slices[self._next]
        messages = list(self._messages)
        self._next = (self._next + 1) % len(self._slices)
        self._steps -= 1
        for message in messages:
            message.slices_left -= 1
        while self._messages and not self._messages[0].slices_left:
            self._messages.popleft()
        return BurstPart(connections, messages)

    def keep(self, is_wanted: Callable[[int, int], bool]) -> None:
        """Remove the messages whose msgid and `expires_ms` are not wanted.

        When none is left, the calls of `take` that `add` asked for are not needed any more.
        """
        self._messages = deque(each for each in self._messages if is_wanted(each.msgid, each.expires_ms))
        if not self._messages:
            self._steps = 0

    def _frames_left(self, message: SharedMessage) -> int:
        following = range(self._next, self._next + message.slices_left)
        return sum(len(self._slices[index % len(self._slices)]) for index in following)


class OpenBursts:
    """The bursts of one app to which further broadcasts may be added without overtaking anything."""

    def __init__(self) -> None:
        self._by_connections: dict[bytes, Burst] = {}
        self._connections: set[int] = set()

    def burst(self, packed: bytes, connections: Sequence[int], frame: bytes) -> Burst:
        """Return the burst to which a frame for these connections is to be added; `packed` are their bytes."""
        burst = self._by_connections.get(packed)
        if burst is None or not burst.may_add(frame):
            self.close(connections)
            burst = self._by_connections[packed] = Burst(connections)
            self._connections.update(connections)
        return burst

    def close(self, connections: Iterable[int]) -> None:
        """Close the bursts if a message for one of their connections is queued: no later broadcast may overtake it."""
        if not self._connections.isdisjoint(connections):
            self._by_connections.clear()
            self._connections.clear()
