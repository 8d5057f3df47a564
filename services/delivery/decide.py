"""What delivery decides: when a push starts and for whom, and when it ends. Pure; facts come out."""

from collections.abc import Mapping

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import PushCancelled, PushFact, PushFinished, PushStarted
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import Push, Waiting
from services.domain.topics import PUSH_COMMANDS

MAILBOX_CAP = 100
"""Unicast pushes kept for a device that is away; the oldest makes place for the newest."""

UNACKNOWLEDGED_CAP = 1000
"""The same for a connected device, which was sent them and may be about to acknowledge."""


def start(waiting: Waiting, audiences: Mapping[int, BitMap]) -> list[PushFact]:
    """One fact for each partition where the push has not started, also for an empty audience."""
    return [
        PushFact(
            meta=_because_of(waiting.order),
            msgid=waiting.send.msgid,
            appkey=waiting.send.appkey,
            partition=partition,
            started=PushStarted(
                audience=audiences[partition].serialize(),
                count=len(audiences[partition]),
                expires_ms=waiting.expires_ms,
            ),
        )
        for partition in sorted(waiting.missing)
    ]


def listed_audiences(waiting: Waiting) -> dict[int, BitMap]:
    """The audiences of a push that lists its devices."""
    return {partition: BitMap(waiting.targets(partition)) for partition in waiting.missing}


def cancel(state: DeliveryState) -> list[PushFact]:
    """Ends each push that was cancelled, wherever it is under way."""
    return [
        PushFact(
            meta=_because_of(order),
            msgid=msgid,
            appkey=state.pushes[msgid].send.appkey,
            partition=partition,
            cancelled=PushCancelled(),
        )
        for msgid, order in state.cancels.items()
        if msgid not in state.waiting
        for partition in sorted(state.pushes[msgid].parts)
    ]


def finish(push: Push) -> list[PushFact]:
    """Ends a push whose time to live is over; whoever has not got it by now never will."""
    return [
        PushFact(msgid=push.msgid, appkey=push.send.appkey, partition=partition, finished=PushFinished())
        for partition in sorted(push.parts)
    ]


def overflow(state: DeliveryState, appkey: str, partition: int, number: int, is_online: bool) -> list[int]:
    """Message ids that a device's full mailbox gives up, oldest first."""
    box = state.mailbox(appkey, partition, number)
    cap = UNACKNOWLEDGED_CAP if is_online else MAILBOX_CAP
    given_up = box[: max(0, len(box) - cap)]
    return [msgid for first in given_up for msgid in state.pushes[first].parts[partition].pending_ids(number)]


def _because_of(order: int) -> Meta:
    return Meta(cause=Position(topic=PUSH_COMMANDS.name, partition=0, offset=order))
