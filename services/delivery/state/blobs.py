"""The state as blobs, for snapshots and to compare it with a rebuilt one."""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from protos.push.v1.push_pb2 import SendPush
from services.delivery.state import badges
from services.delivery.state.audience_parts import BitmapPart, ListedPart, Part
from services.delivery.state.broadcasts import Row
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import Over, Push, Waiting

_PUSH = tuple[bytes, int, int, list[tuple[int, bytes]], list[tuple[int, int, bytes]]]
_WAITING = tuple[bytes, int, int, set[int]]
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode
Blob = tuple[bytes, bytes]


def dump(state: DeliveryState) -> Iterator[Blob]:
    """The state's blobs. Facts may be folded while they are taken one by one: those of the pushes that have started
    everywhere are then newer than the moment of the call, and folding the facts since that moment again heals it."""
    started = [msgid for msgid in sorted(state.pushes) if msgid not in state.waiting]
    now = [
        (b"seen", state.seen.dump()),
        *((b"waiting", _waiting(state.waiting[msgid])) for msgid in _in_order(state)),
        *((b"push", _push(state.pushes[msgid])) for msgid in sorted(state.pushes) if msgid in state.waiting),
        (b"log_ms", _encode(state.log_ms)),
        (b"cancels", _encode(sorted(state.cancels.items()))),
        (b"broadcasts", _encode(state.broadcasts.dump())),
        (b"badges", _encode(state.badges.dump())),
    ]
    return _then_pushes(now, state, started)


def _then_pushes(now: Sequence[Blob], state: DeliveryState, msgids: Sequence[int]) -> Iterator[Blob]:
    yield from now
    for msgid in msgids:
        if (push := state.pushes.get(msgid)) is not None:
            yield b"push", _push(push)


def load(state: DeliveryState, blobs: Sequence[Blob]) -> None:
    """Fill a fresh state with what `dump` gave."""
    cancels: list[tuple[int, int]] = []
    for key, value in blobs:
        match key:
            case b"seen":
                state.seen.load(value)
            case b"waiting":
                raw, order, accepted_ms, missing = _decode(value, type=_WAITING)
                waiting = Waiting(SendPush.FromString(raw), order, accepted_ms, missing)
                state.waiting[waiting.send.msgid] = waiting
            case b"log_ms":
                state.log_ms = _decode(value, type=int)
            case b"push":
                state.restore(_loaded(value))
            case b"badges":
                state.badges.load(_decode(value, type=list[badges.Row]))
            case b"broadcasts":
                state.broadcasts.load(_decode(value, type=list[Row]))
            case _:
                cancels = _decode(value, type=list[tuple[int, int]])
    state.cancels.update((msgid, at) for msgid, at in cancels if state.is_under_way(msgid))


def digest(state: DeliveryState) -> str:
    """A hash over everything but the ids of pushes that are over."""
    whole = hashlib.sha256()
    for key, value in dump(state):
        if key != b"seen":
            whole.update(b"%s %d " % (key, len(value)))
            whole.update(value)
    return whole.hexdigest()


def _in_order(state: DeliveryState) -> list[int]:
    return sorted(state.waiting, key=lambda msgid: state.waiting[msgid].order)


def _waiting(waiting: Waiting) -> bytes:
    send = waiting.send.SerializeToString(deterministic=True)
    return _encode((send, waiting.order, waiting.accepted_ms, sorted(waiting.missing)))


def _push(push: Push) -> bytes:
    parts = [(number, part.dump()) for number, part in sorted(push.parts.items())]
    over = [(number, each.forget_ms, each.part.dump()) for number, each in sorted(push.over.items())]
    return _encode((push.send.SerializeToString(deterministic=True), push.order, push.expires_ms, parts, over))


def _loaded(blob: bytes) -> Push:
    raw, order, expires_ms, parts, over = _decode(blob, type=_PUSH)
    push = Push(SendPush.FromString(raw), order, expires_ms)
    for number, part in parts:
        push.parts[number] = _loaded_part(push, part)
    for number, forget_ms, part in over:
        push.over[number] = Over(_loaded_part(push, part), forget_ms)
    return push


def _loaded_part(push: Push, blob: bytes) -> Part:
    return ListedPart.load(blob) if push.is_listed else BitmapPart.load(push.msgid, blob)
