"""The decisions of delivery: which facts start, cancel and finish pushes, and which reports are accepted. Pure."""

from collections.abc import Mapping

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import PushCancelled, PushFact, PushFinished, PushStarted
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.state.addresses import DeviceAddress
from services.delivery.state.audience_parts import BitmapAudience, listed_targets
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import RequestedPush, StartedPush
from services.domain.topics import PUSH_COMMANDS

MAILBOX_CAP = 100
"""Unicast pushes stored for a device that is not connected; beyond it the oldest are dropped."""

UNACKNOWLEDGED_CAP = 1000
"""The same for a connected device, which has been sent them and may acknowledge them soon."""


def start(push: RequestedPush, audiences: Mapping[int, BitMap]) -> list[PushFact]:
    """Start the push in each partition where it has not started, also with an empty audience."""
    return [
        PushFact(
            meta=_caused_by(push.offset),
            msgid=push.send.msgid,
            appkey=push.send.appkey,
            partition=partition,
            started=PushStarted(
                audience=audiences[partition].serialize(),
                count=len(audiences[partition]),
                expires_ms=push.expires_ms,
            ),
        )
        for partition in sorted(push.remaining)
    ]


def cancel(state: DeliveryState) -> list[PushFact]:
    """End each push with a pending cancel in its active partitions, once it has started in all of them."""
    return [
        PushFact(
            meta=_caused_by(offset),
            msgid=msgid,
            appkey=state.started[msgid].send.appkey,
            partition=partition,
            cancelled=PushCancelled(),
        )
        for msgid, offset in state.pending_cancels.items()
        if msgid not in state.requested
        for partition in sorted(state.started[msgid].active_parts)
    ]


def finish(push: StartedPush) -> list[PushFact]:
    """End a push whose time to live has passed."""
    return [
        PushFact(msgid=push.msgid, appkey=push.send.appkey, partition=partition, finished=PushFinished())
        for partition in sorted(push.active_parts)
    ]


def overflow(state: DeliveryState, device: DeviceAddress, is_connected: bool) -> list[int]:
    """Return the message ids that the device's full mailbox drops, oldest first."""
    mailbox = state.mailbox(device)
    cap = UNACKNOWLEDGED_CAP if is_connected else MAILBOX_CAP
    dropped = mailbox[: max(0, len(mailbox) - cap)]
    return [
        msgid
        for first in dropped
        for msgid in state.started[first].active_parts[device.partition].pending_msgids(device.number)
    ]


def accepts_acknowledgement(push: StartedPush | None, device: DeviceAddress, msgid: int, sent: bool | None) -> bool:
    """Whether the message is pending for the device, and was sent to it; a repeated acknowledgement is not accepted.

    `sent` None: it is unknown whether the message was sent to the device; then its place in the audience suffices.
    """
    if push is None or push.send.appkey != device.appkey or sent is False:
        return False
    part = push.part(device.partition)
    return part is not None and msgid in part.pending_msgids(device.number)


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
        return msgid in listed_targets(push.send).get(device.partition, {}).get(device.number, ())
    part = push.part(device.partition)
    return isinstance(part, BitmapAudience) and device.number in part.devices


def _caused_by(offset: int) -> Meta:
    return Meta(cause=Position(topic=PUSH_COMMANDS.name, partition=0, offset=offset))
