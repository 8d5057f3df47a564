"""What delivery decides: when a push starts and for whom, and when it ends. Pure; facts come out."""

from collections.abc import Mapping

import numpy
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import PushCancelled, PushFact, PushFinished, PushStarted
from protos.push.v1.push_pb2 import CancelPush, SendPush
from services.delivery.state import DeliveryState, Waiting

MAILBOX_CAP = 100
"""Unicast pushes kept for one device; the oldest makes place for the newest."""


def start(waiting: Waiting, audiences: Mapping[int, BitMap]) -> list[PushFact]:
    """One fact for each partition that has not started. An empty audience is fixed too, except where the command
    itself lists its devices."""
    expires_ms = waiting.accepted_ms + waiting.send.period_s * 1000
    return [
        PushFact(
            msgid=waiting.send.msgid,
            appkey=waiting.send.appkey,
            partition=partition,
            started=PushStarted(audience=audience.serialize(), count=len(audience), expires_ms=expires_ms),
        )
        for partition, audience in sorted(audiences.items())
        if partition not in waiting.started
    ]


def listed_audiences(send: SendPush, partitions: frozenset[int]) -> dict[int, BitMap]:
    """The audiences of a push that lists its devices, for the partitions given that have any."""
    of_target = numpy.frombuffer(send.audience.devices.partitions, "<u2")
    numbers = numpy.frombuffer(send.audience.devices.numbers, "<u4")
    here = partitions.intersection(numpy.unique(of_target).tolist())
    return {partition: BitMap(numbers[of_target == partition]) for partition in here}


def cancel(state: DeliveryState, command: CancelPush) -> list[PushFact]:
    """Ends the push wherever it is under way; nothing for an unknown one or one of another app."""
    push = state.pushes.get(command.msgid)
    if push is None or push.send.appkey != command.appkey:
        return []
    return [
        PushFact(msgid=push.msgid, appkey=command.appkey, partition=partition, cancelled=PushCancelled())
        for partition in sorted(push.parts)
    ]


def expire(state: DeliveryState, msgid: int, now_ms: int) -> list[PushFact]:
    """Ends a push whose time to live is over; whoever has not got it by now never will."""
    push = state.pushes.get(msgid)
    if push is None or push.expires_ms > now_ms:
        return []
    return [
        PushFact(msgid=msgid, appkey=push.send.appkey, partition=partition, finished=PushFinished())
        for partition in sorted(push.parts)
    ]


def overflow(state: DeliveryState, appkey: str, partition: int, number: int) -> list[int]:
    """Message ids that a full mailbox gives up, oldest first."""
    waiting = state.mailbox(appkey, partition, number)
    given_up = waiting[: max(0, len(waiting) - MAILBOX_CAP)]
    return [entry for msgid in given_up for entry in state.pushes[msgid].parts[partition].pending_ids(number)]
