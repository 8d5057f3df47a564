"""The decisions of delivery: which facts start, cancel and finish pushes, and which reports are accepted. Pure."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import PushCancelled, PushFact, PushFailed, PushFinished, PushStarted
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.state.audience_parts import BitmapAudience, DeviceAddress, listed_targets
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush, UnstartedPush
from services.domain.topics import PUSH_COMMANDS

MAILBOX_CAP = 100
"""Unicast pushes stored for a device that is not connected; beyond it the oldest are dropped."""

UNACKNOWLEDGED_CAP = 1000
"""Unicast pushes stored for a connected device, which may acknowledge them soon; beyond it the oldest are dropped."""

MAX_REASON_CHARS = 1000
"""Reasons of failed pushes are cut to this length."""

_MAX_CANCELS = 100
"""Upper bound of the pushes that one call ends, so that many cancels of one app delay nothing for long."""


def start(
    push: UnstartedPush, audiences: Mapping[int, BitMap], attributes_until: Mapping[int, int] = MappingProxyType({})
) -> list[PushFact]:
    """Start the push in each partition of `audiences`, also with an empty audience.

    `attributes_until`: PushStarted.attributes_until by partition, of audiences that targeting resolved.
    """
    return [
        PushFact(
            meta=_caused_by(push.offset),
            msgid=push.send.msgid,
            appkey=push.send.appkey,
            partition=partition,
            started=PushStarted(
                audience=audience.serialize(),
                count=len(audience),
                expires_ms=push.expires_ms,
                attributes_until=attributes_until.get(partition, 0),
            ),
        )
        for partition, audience in sorted(audiences.items())
    ]


def fail(push: UnstartedPush, partitions: Iterable[int], reason: str) -> list[PushFact]:
    """End the push in partitions where it has not started."""
    return [
        PushFact(
            meta=_caused_by(push.offset),
            msgid=push.send.msgid,
            appkey=push.send.appkey,
            partition=partition,
            failed=PushFailed(reason=reason[:MAX_REASON_CHARS]),
        )
        for partition in sorted(partitions)
    ]


def cancel(state: DeliveryState, held_up: Collection[int] = ()) -> list[PushFact]:
    """End pushes with a pending cancel in all their partitions: those that have started, and those `held_up`.

    Any other push that has not started is started first, and sent to no device, so that its audience is on record.
    """
    ending = [msgid for msgid in state.pending_cancels if msgid not in state.requested or msgid in held_up]
    return [fact for msgid in ending[:_MAX_CANCELS] for fact in _cancel(state, msgid)]


def _cancel(state: DeliveryState, msgid: int) -> list[PushFact]:
    requested, started = state.requested.get(msgid), state.started.get(msgid)
    push = requested or started
    partitions = {*(requested.remaining if requested else ()), *(started.active_parts if started else ())}
    return [
        PushFact(
            meta=_caused_by(state.pending_cancels[msgid]),
            msgid=msgid,
            appkey=push.send.appkey if push else "",
            partition=partition,
            cancelled=PushCancelled(),
        )
        for partition in sorted(partitions)
    ]


def finish(push: StartedPush) -> list[PushFact]:
    """End a push whose time to live has passed."""
    return [
        PushFact(msgid=push.msgid, appkey=push.send.appkey, partition=partition, finished=PushFinished())
        for partition in sorted(push.active_parts)
    ]


def overflow(state: DeliveryState, device: DeviceAddress, is_connected: bool) -> list[int]:
    """Return the message ids that the device's full mailbox drops, oldest first; none that a channel may be showing."""
    mailbox = state.mailbox(device)
    cap = UNACKNOWLEDGED_CAP if is_connected else MAILBOX_CAP
    dropped = mailbox[: max(0, len(mailbox) - cap)]
    return [
        msgid
        for first in dropped
        for msgid in state.started[first].active_parts[device.partition].pending_msgids(device.number)
        if device.number not in state.hand_overs.claimed(first, device.partition, msgid)
    ]


def accepts_acknowledgement(push: StartedPush | None, device: DeviceAddress, msgid: int, sent: bool | None) -> bool:
    """Whether the message is pending for the device, or was withdrawn from it, and was sent to it; a repeated
    acknowledgement is not accepted.

    `sent` None: it is unknown whether the message was sent to the device; then its place in the audience suffices.
    """
    if push is None or push.send.appkey != device.appkey or sent is False:
        return False
    part = push.part(device.partition)
    return part is not None and part.awaits_acknowledgement(device.number, msgid)


def accepts_report(push: StartedPush | None, device: DeviceAddress, msgid: int, sent: bool | None) -> bool:
    """Whether the message was sent to the device, also long ago; `push` is None once it is forgotten.

    `sent` None: it is unknown whether the message was sent to the device; then its place in the audience suffices.
    """
    if push is not None and push.send.appkey != device.appkey:
        return False
    return (push is not None and _addresses(push, device, msgid)) if sent is None else sent


def _addresses(push: StartedPush, device: DeviceAddress, msgid: int) -> bool:
    """Whether the device is in the push's audience; not for a broadcast in a forgotten partition."""
    if push.is_listed:
        listed = listed_targets(push.send, [device.partition])
        return msgid in listed.get(device.partition, {}).get(device.number, ())
    part = push.part(device.partition)
    return isinstance(part, BitmapAudience) and device.number in part.devices


def _caused_by(offset: int) -> Meta:
    return Meta(cause=Position(topic=PUSH_COMMANDS.name, partition=0, offset=offset))
