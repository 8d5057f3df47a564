"""Makes the bytes of WebSocket frames: one, many at once, in fragments, or in violation of the protocol."""

from collections.abc import Callable
from random import Random

from testkit.gateway.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, close, frame
from tests.soak.fuzz.cases import WireFrames, pieces
from tests.soak.fuzz.values import mutated_bytes

_OPCODES = (CONTINUATION, TEXT, BINARY, 0x3, 0x7, CLOSE, PING, PONG, 0xB, 0xF)
_SIZES = (
    b"\x7e\x00\x01",
    b"\x7e\xff\xff",
    b"\x7f" + b"\xff" * 8,
    b"\x7f" + b"\x00" * 7 + b"\x05",
    b"\x7f\x00\x00\x00\x01" + b"\x00" * 4,
)
_MOST_CONTROL_BYTES = 125
_MANY = 80
"""More frames than the requests of a device that may wait for an earlier one."""


def wire_frames(random: Random, payload: Callable[[bool], bytes], *, welcomed: bool) -> WireFrames:
    """Return frames with one or more payloads, of which each call of `payload` makes one: with True of any bytes.

    A payload that is no JSON ends the connection, so of several messages only the last may be mutated as bytes.
    """
    messages = 1
    kind = random.random()
    is_whole = kind < 0.85
    if kind < 0.42:
        data = frame(TEXT, payload(True))
    elif kind < 0.72:
        messages = _MANY if random.random() < 0.01 else random.choice((2, 6, 20))
        data = b"".join(frame(TEXT, payload(number == messages)) for number in range(1, messages + 1))
    elif is_whole:
        data = _fragments(random, payload(True))
    else:
        data = _violating(random, payload(True))
    count = random.choice((2, 3, 10, 100)) if random.random() < 0.05 else 1
    return WireFrames(data, welcomed, is_whole, count, messages)


def _fragments(random: Random, payload: bytes) -> bytes:
    """Return a message in fragments, with control frames between them, and now and then a frame that may not be."""
    *first, last = pieces(payload, random.choice((1, 2, 3, 10, 60)))
    fragments = [(piece, False) for piece in (*first, *[b""] * random.choice((0, 0, 1, 3)))] + [(last, True)]
    sent: list[bytes] = []
    for number, (piece, fin) in enumerate(fragments):
        sent.append(frame(CONTINUATION if number else TEXT, piece, fin=fin))
        if random.random() < 0.3:
            content = random.randbytes(random.choice((0, 1, _MOST_CONTROL_BYTES)))
            sent += [frame(random.choice((PING, PONG)), content)] * random.choice((1, 1, 20))
    if random.random() < 0.15:
        intruder = random.choice((frame(TEXT, payload), frame(CLOSE), frame(CONTINUATION, payload), close(1000)))
        sent.insert(random.randrange(len(sent) + 1), intruder)
    return b"".join(sent)


def _violating(random: Random, payload: bytes) -> bytes:
    """Return frames that violate the protocol of WebSocket."""
    change = random.randrange(7)
    data: bytes
    if change == 0:
        cut = random.randrange(len(payload) + 1)
        data = frame(TEXT, payload[:cut], fin=False) + frame(CONTINUATION, payload[cut:])
    elif change == 1:
        data = frame(random.choice(_OPCODES), payload, fin=random.random() < 0.7, rsv=random.choice((0, 0, 4, 7)))
    elif change == 2:
        data = frame(TEXT, payload, masked=False)
    elif change == 3:
        data = frame(TEXT, payload, size=random.choice(_SIZES))
    elif change == 4:
        data = close(random.randrange(65536), random.choice((b"", b"\xff", b"bye", b"x" * 123)))
    elif change == 5:
        data = b"".join(
            frame(PING, random.randbytes(random.choice((0, 125, 126)))) for _ in range(random.choice((1, 30)))
        )
    else:
        data = mutated_bytes(random, frame(TEXT, payload))
    return data if random.random() < 0.7 else data * 3
