"""The state as blobs (key, value): the content of a snapshot file, and the input of digests.

The keys and the shapes of the values are the file format; a change to them needs a new version in `store`. A new key is
no change: earlier releases pass over it.
"""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from protos.push.v1.push_pb2 import SendPush
from services.delivery.state.audience_parts import AudiencePart, BitmapAudience, ListedAudience
from services.delivery.state.bad_tokens import BadTokensRow
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.devices import BadgeRow
from services.delivery.state.hand_overs import HandOversRow
from services.delivery.state.pushes import (
    BroadcastRow,
    EndedPart,
    PackedPushes,
    PackedRow,
    PushSource,
    SinglePush,
    StartedPush,
    UnstartedPush,
)
from services.delivery.state.sent_messages import SentRow
from services.log.port import Partition

PACKED_PUSHES = 500
"""Pushes with one pending message that make up one blob, at most."""

_STARTED = tuple[bytes, int, int, list[tuple[int, bytes]], list[tuple[int, int, bytes]]]
_WITHDRAWN = tuple[int, list[tuple[int, list[tuple[int, list[int]]]]]]
_REQUESTED = tuple[bytes, int, int, int, set[int]]
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode
Blob = tuple[bytes, bytes]


def dump(state: DeliveryState) -> Iterator[Blob]:
    """Return the state's blobs, which may be taken one by one while facts are folded.

    Pushes that have started in all partitions may then be newer than this call; folding the facts since the call once
    more gives the same state.
    """
    started = [msgid for msgid in sorted(state.started) if msgid not in state.requested]
    first = [
        (b"seen", state.dedupe_window.dump()),
        (b"ios apps", _encode(sorted(state.apns_apps))),
        *((b"waiting", _dump_requested(state.requested[msgid])) for msgid in _by_offset(state)),
        *(
            blob
            for msgid in sorted(state.started)
            if msgid in state.requested
            for blob in _dump_push(state.started[msgid])
        ),
        (b"log_ms", _encode(state.log_ms)),
        (b"cancels", _encode(sorted(state.pending_cancels.items()))),
        (b"broadcasts", _encode(state.broadcasts.dump())),
        (b"badges", _encode(state.badges.dump())),
        *((b"bad tokens", _encode(row)) for row in state.bad_tokens.dump()),
        (b"epochs", _encode(sorted((*partition, epoch) for partition, epoch in state.epochs.highest().items()))),
    ]
    return _then_started(first, state, started)


def _then_started(first: Sequence[Blob], state: DeliveryState, msgids: Sequence[int]) -> Iterator[Blob]:
    yield from first
    singles: list[SinglePush] = []
    for msgid in msgids:
        if msgid not in state.started:
            continue
        if (single := state.started.single(msgid)) is None:
            yield from _dump_push(state.started[msgid])
            continue
        singles.append(single)
        if len(singles) == PACKED_PUSHES:
            yield b"packed", _encode(PackedPushes(singles).dump())
            singles = []
    if singles:
        yield b"packed", _encode(PackedPushes(singles).dump())
    for row in state.sent_messages.dump():
        yield b"sent", _encode(row)
    for hand_overs in state.hand_overs.dump():
        yield b"hand overs", _encode(hand_overs)


def load(state: DeliveryState, blobs: Sequence[Blob]) -> None:
    """Fill an empty state with the blobs of `dump`."""
    cancels: list[tuple[int, int]] = []
    for key, value in blobs:
        match key:
            case b"seen":
                state.dedupe_window.load(value)
            case b"waiting":
                raw, offset, accepted_ms, source, remaining = _decode(value, type=_REQUESTED)
                send = SendPush.FromString(raw)
                state.request(UnstartedPush(send, offset, accepted_ms, PushSource(source), remaining))
            case b"log_ms":
                state.log_ms = _decode(value, type=int)
            case b"push":
                state.restore(_load_started(value))
            case b"withdrawn":
                _load_withdrawn(state, value)
            case b"packed":
                state.restore_packed(PackedPushes.load(_decode(value, type=PackedRow)))
            case b"ios apps":
                state.apns_apps.update(_decode(value, type=list[str]))
            case b"sent":
                state.sent_messages.load(_decode(value, type=SentRow))
            case b"hand overs":
                state.hand_overs.load([_decode(value, type=HandOversRow)])
            case b"bad tokens":
                state.bad_tokens.load(_decode(value, type=BadTokensRow))
            case b"badges":
                state.badges.load(_decode(value, type=list[BadgeRow]))
            case b"broadcasts":
                state.broadcasts.load(_decode(value, type=list[BroadcastRow]))
            case b"epochs":
                for topic, number, epoch in _decode(value, type=list[tuple[str, int, int]]):
                    state.epochs.note(Partition(topic, number), epoch)
            case b"cancels":
                cancels = _decode(value, type=list[tuple[int, int]])
    state.pending_cancels.update((msgid, offset) for msgid, offset in cancels if state.is_in_progress(msgid))


def digest(state: DeliveryState) -> str:
    """Return a hash of the whole state except the dedupe window, the epochs, and what is known of Apple's answers.

    A snapshot of an earlier release lacks these answers, so they are known from the next outcomes on.
    """
    whole = hashlib.sha256()
    for key, value in dump(state):
        if key not in (b"seen", b"epochs", b"bad tokens"):
            whole.update(b"%s %d " % (key, len(value)))
            whole.update(value)
    return whole.hexdigest()


def _by_offset(state: DeliveryState) -> list[int]:
    return sorted(state.requested, key=lambda msgid: state.requested[msgid].offset)


def _dump_requested(push: UnstartedPush) -> bytes:
    send = push.send.SerializeToString(deterministic=True)
    return _encode((send, push.offset, push.accepted_ms, push.source, sorted(push.remaining)))


def _dump_started(push: StartedPush) -> bytes:
    send = push.send.SerializeToString(deterministic=True)
    active = [(partition, part.dump()) for partition, part in sorted(push.active_parts.items())]
    ended = [(partition, each.forget_ms, each.part.dump()) for partition, each in sorted(push.ended_parts.items())]
    return _encode((send, push.offset, push.expires_ms, active, ended))


def _dump_push(push: StartedPush) -> Iterator[Blob]:
    yield b"push", _dump_started(push)
    withdrawn = [
        (partition, sorted(part.withdrawn.items()))
        for partition in sorted({*push.active_parts, *push.ended_parts})
        if isinstance(part := push.part(partition), ListedAudience) and part.withdrawn
    ]
    if withdrawn:
        yield b"withdrawn", _encode((push.msgid, withdrawn))


def _load_withdrawn(state: DeliveryState, blob: bytes) -> None:
    msgid, by_partition = _decode(blob, type=_WITHDRAWN)
    for partition, withdrawn in by_partition:
        part = state.started[msgid].part(partition)
        if isinstance(part, ListedAudience):
            part.withdrawn = dict(withdrawn)


def _load_started(blob: bytes) -> StartedPush:
    raw, offset, expires_ms, active, ended = _decode(blob, type=_STARTED)
    push = StartedPush(SendPush.FromString(raw), offset, expires_ms)
    for partition, part in active:
        push.active_parts[partition] = _load_part(push, part)
    for partition, forget_ms, part in ended:
        push.ended_parts[partition] = EndedPart(_load_part(push, part), forget_ms)
    return push


def _load_part(push: StartedPush, blob: bytes) -> AudiencePart:
    return ListedAudience.load(blob) if push.is_listed else BitmapAudience.load(push.msgid, blob)
