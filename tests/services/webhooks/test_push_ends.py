"""The ends of pushes: when a push is over in a partition and as a whole, with which totals, once, also after kills."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import (
    AppOutcomes,
    DeliveryFact,
    OutcomeKind,
    Outcomes,
    PushCancelled,
    PushFact,
    PushFailed,
    PushFinished,
    PushStarted,
)
from protos.push.v1.push_pb2 import Audience, Devices, Everyone, Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import (
    EVENT_KIND_MESSAGE_SENT,
    EVENT_KIND_PUSH_FINISHED,
    PLATFORM_ANDROID,
    PLATFORM_IOS,
)
from protos.runtime.v1.log_pb2 import Meta, Position
from protos.webhooks.v1.push_ends_pb2 import PushEnded, PushEnding
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.log.port import NewRecord, Record
from services.log.topics import Topic
from services.webhooks.push_ends import CountedPushes
from testkit.webhook_receiver import WebhookReceiver
from tests.services.webhooks.conftest import APP, NOW_MS, OTHER, PARTITIONS, Installation

SENT, RECEIVED = OutcomeKind.OUTCOME_KIND_SENT, OutcomeKind.OUTCOME_KIND_RECEIVED
SHOWN, FAILED = OutcomeKind.OUTCOME_KIND_SHOWN, OutcomeKind.OUTCOME_KIND_FAILED
CLICKED = OutcomeKind.OUTCOME_KIND_CLICKED
HANDED_OVER = OutcomeKind.OUTCOME_KIND_HANDED_OVER


def command(msgid: int = 7, appkey: str = APP, *entries: tuple[int, int, int], **fields: Any) -> PushCommand:
    """Return a push to everyone, or to a list of (partition, number, id offset)."""
    audience = Audience(everyone=Everyone())
    if entries:
        count = len(entries)
        partitions, numbers, offsets = zip(*entries, strict=True)
        audience = Audience(
            devices=Devices(
                partitions=struct.pack(f"<{count}H", *partitions),
                numbers=struct.pack(f"<{count}I", *numbers),
                id_offsets=struct.pack(f"<{count}I", *offsets),
            )
        )
    fields = {"platform": PLATFORM_ANDROID, "kind": Kind.KIND_BROADCAST, "id_count": 1} | fields
    send = SendPush(msgid=msgid, appkey=appkey, audience=audience, **fields)
    return PushCommand(meta=Meta(event_id=b"c", time_ms=NOW_MS), send=send)


def started(partition: int, *numbers: int, msgid: int = 7, appkey: str = APP) -> PushFact:
    audience = BitMap(numbers)
    fact = PushStarted(audience=audience.serialize(), count=len(audience))
    return PushFact(meta=Meta(time_ms=NOW_MS + 1), msgid=msgid, appkey=appkey, partition=partition, started=fact)


def ended(partition: int, msgid: int = 7, **fact: Any) -> PushFact:
    return PushFact(meta=Meta(time_ms=NOW_MS + 9), msgid=msgid, appkey=APP, partition=partition, **fact)


def outcomes(*rows: tuple[int, int, int], appkey: str = APP) -> DeliveryFact:
    """Return outcomes of (msgid, number, kind)."""
    count = len(rows)
    of_app = AppOutcomes(
        appkey=appkey,
        msgids=struct.pack(f"<{count}Q", *(row[0] for row in rows)),
        numbers=struct.pack(f"<{count}I", *(row[1] for row in rows)),
        kinds=bytes(row[2] for row in rows),
        times_ms=bytes(8 * count),
        reason_indexes=bytes(count),
    )
    return DeliveryFact(meta=Meta(time_ms=NOW_MS + 5), outcomes=Outcomes(apps=[of_app]))


class Fold:
    """Folds messages as records, and packs and restores the pushes between each two of them."""

    def __init__(self) -> None:
        self._pushes = self._new()

    def __call__(self, message: Any, partition: int = 0) -> list[PushEnded]:
        restored = self._new()
        restored.restore(packed for _, packed in self._pushes.packed())
        self._pushes = restored
        record = Record("any", partition, 0, b"", b"")
        return [fact.ended for fact in self._pushes.apply(record, message)]

    @property
    def is_empty(self) -> bool:
        return not list(self._pushes.packed())

    def _new(self) -> CountedPushes:
        made = CountedPushes(PARTITIONS)
        made.wanted = {APP}
        return made


def test_a_broadcast_is_over_when_each_device_has_its_outcome() -> None:
    fold = Fold()
    assert not fold(command())
    assert not fold(started(0, 1, 2))
    assert not fold(outcomes((7, 1, SENT), (7, 2, SENT), (7, 1, RECEIVED)), 0)
    assert not fold(outcomes((7, 2, RECEIVED), (7, 2, SHOWN)), 0)  # partition 1 has not started
    (end,) = fold(started(1))
    assert end == PushEnded(
        msgid=7,
        appkey=APP,
        kind=Kind.KIND_BROADCAST,
        ending=PushEnding.PUSH_ENDING_COMPLETED,
        devices=2,
        sent=2,
        received=2,
        shown=1,
    )
    assert fold.is_empty
    assert not fold(outcomes((7, 1, SHOWN)), 0)


def test_the_totals_are_those_of_the_statistics() -> None:
    """A repeated outcome counts once, one of another device not; a later step implies the earlier ones."""
    fold = Fold()
    fold(command())
    fold(started(0, 1, 2, 3, 4))
    fold(started(1))
    for _ in range(2):
        assert not fold(outcomes((7, 1, SENT), (7, 2, SENT), (7, 99, SENT), (7, 3, CLICKED), (7, 99, RECEIVED)), 0)
    assert not fold(outcomes((7, 4, FAILED), (7, 4, RECEIVED)), 0)
    (end,) = fold(ended(0, finished=PushFinished()))
    assert end == PushEnded(
        msgid=7,
        appkey=APP,
        kind=Kind.KIND_BROADCAST,
        ending=PushEnding.PUSH_ENDING_EXPIRED,
        devices=4,
        sent=4,
        received=2,
        shown=1,
        clicked=1,
        expired=2,
    )


def test_an_outcome_after_a_hand_over_ends_no_other_device() -> None:
    fold = Fold()
    fold(command())
    fold(started(1))
    fold(started(0, 1, 2))
    assert not fold(outcomes((7, 1, HANDED_OVER), (7, 1, RECEIVED)), 0)
    (end,) = fold(outcomes((7, 2, FAILED)), 0)
    assert (end.handed_over, end.received, end.failed) == (1, 1, 1)


def test_a_list_is_over_when_each_of_its_messages_is() -> None:
    """A repeated token is sent twice, under two message ids."""
    fold = Fold()
    fold(command(7, APP, (0, 4, 0), (0, 4, 1), (1, 9, 2), id_count=3, kind=Kind.KIND_UNICAST))
    fold(started(0, 4))
    fold(started(1, 9))
    assert not fold(outcomes((7, 4, RECEIVED)), 0)
    assert not fold(outcomes((9, 9, RECEIVED)), 1)
    (end,) = fold(outcomes((8, 4, FAILED)), 0)
    assert (end.msgid, end.received, end.failed, end.devices) == (7, 2, 1, 2)


def test_what_apple_accepted_is_over() -> None:
    fold = Fold()
    fold(command(7, APP, (0, 4, 0), platform=PLATFORM_IOS))
    fold(started(0, 4))
    (end,) = fold(outcomes((7, 4, SENT)), 0)
    assert end.sent == 1


@pytest.mark.parametrize(
    ("fact", "ending"),
    [
        ({"finished": PushFinished()}, PushEnding.PUSH_ENDING_EXPIRED),
        ({"cancelled": PushCancelled()}, PushEnding.PUSH_ENDING_CANCELLED),
        ({"failed": PushFailed(reason="no")}, PushEnding.PUSH_ENDING_FAILED),
    ],
)
def test_a_push_is_over_by_facts_of_delivery(fact: dict[str, Any], ending: PushEnding.ValueType) -> None:
    """Those that have no outcome then are expired or cancelled with it; the log has no record for each of them."""
    fold = Fold()
    fold(command())
    fold(started(0, 1))
    assert not fold(outcomes((7, 1, RECEIVED)), 0)
    if "failed" not in fact:
        assert not fold(started(1, 5, 6))
    (end,) = fold(ended(1, **fact))
    rest = {PushEnding.PUSH_ENDING_EXPIRED: (2, 0), PushEnding.PUSH_ENDING_CANCELLED: (0, 2)}
    assert (end.ending, end.received, (end.expired, end.cancelled)) == (ending, 1, rest.get(ending, (0, 0)))


def test_others_pushes_and_pushes_from_before_do_not_count() -> None:
    fold = Fold()
    assert not fold(command(8, OTHER))
    assert not fold(started(0, 1, msgid=9))
    assert not fold(outcomes((8, 1, RECEIVED), appkey=OTHER), 0)
    fold(command())
    fold(started(0, 1))
    fold(started(1))
    assert not fold(outcomes((7, 1, RECEIVED), appkey=OTHER), 0)
    assert not fold.is_empty


async def append(installation: Installation, topic: Topic, partition: int, *messages: Any) -> None:
    records = [NewRecord(topic.name, partition, b"k", message.SerializeToString()) for message in messages]
    await installation.log.append(records)


async def push_through(installation: Installation, msgid: int, receives: Sequence[int] = (1, 2)) -> None:
    """Append a push to two devices and their acknowledgements, as far as they are in `receives`."""
    meta = Meta(cause=Position(topic=PUSH_COMMANDS.name, partition=0, offset=0))
    await append(installation, PUSH_COMMANDS, 0, command(msgid))
    for partition, numbers in ((0, (1, 2)), (1, ())):
        fact = started(partition, *numbers, msgid=msgid)
        fact.meta.MergeFrom(meta)
        await append(installation, PUSHES, partition, fact)
    for number in receives:
        await append(installation, DELIVERIES, 0, outcomes((msgid, number, RECEIVED)))


async def test_the_end_of_a_push_arrives_once_also_after_kills(
    installation: Installation, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = await installation.subscribe(receiver.url, kinds=[EVENT_KIND_PUSH_FINISHED])
    async with installation.running():
        await installation.until_followed(webhook)
        await push_through(installation, 7)
        await push_through(installation, 8, receives=[1])
        await receiver.until_events(1)
    (event,) = receiver.events
    assert (event["type"], event["data"]) == (
        "push.finished",
        {
            "msgid": 7,
            "kind": "broadcast",
            "ending": "completed",
            "devices": 2,
            "sent": 2,
            "received": 2,
            **dict.fromkeys(("shown", "clicked", "dismissed"), 0),
            **dict.fromkeys(("failed", "expired", "cancelled", "dropped", "handed_over"), 0),
        },
    )
    with monkeypatch.context() as killed:  # the snapshot stays the one from before: the records are counted again
        killed.setattr("services.replica.snapshot.SnapshotFile.save", lambda *_: None)
        async with installation.running():
            await append(installation, DELIVERIES, 0, outcomes((8, 2, RECEIVED)))
            await receiver.until_events(2)
    async with installation.running():
        await push_through(installation, 9)
        await receiver.until_events(3)
    ends = {event["id"]: event["data"]["msgid"] for event in receiver.events}  # a kill may repeat a request
    assert list(ends.values()) == [7, 8, 9]


async def test_an_end_that_a_stop_has_kept_from_the_log_is_told_later(
    installation: Installation, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = await installation.subscribe(receiver.url, kinds=[EVENT_KIND_PUSH_FINISHED])
    begun = asyncio.Event()

    async def never(*arguments: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as stuck:
        stuck.setattr("services.webhooks.push_ends.append_until_accepted", never)
        async with installation.running():
            await installation.until_followed(webhook)
            await push_through(installation, 7)
            async with asyncio.timeout(60):
                await begun.wait()
    async with installation.running():
        await receiver.until_events(1)
    assert [event["data"]["msgid"] for event in receiver.events] == [7]


async def test_nothing_is_read_where_nobody_wants_to_know(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    directory = installation.settings.state_dir("webhooks")
    async with installation.running():
        webhook = await installation.subscribe(receiver.url, kinds=[EVENT_KIND_MESSAGE_SENT])
        await installation.until_followed(webhook)
        await push_through(installation, 7)
        assert not list(directory.glob("*.snapshot"))
    assert not list(directory.glob("*.snapshot"))
