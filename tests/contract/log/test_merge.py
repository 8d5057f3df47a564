"""Merged reading on either log: partitions keep their order, and no record comes before its cause."""

from collections.abc import Sequence

from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.push.v1.push_pb2 import PushCommand
from protos.runtime.v1.log_pb2 import Meta, Position
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.log.port import Log, NewRecord, Partition, Record
from services.replica.merge import MergedReader

COMMANDS = Partition(PUSH_COMMANDS.name, 0)
OUTCOMES = Partition(DELIVERIES.name, 0)
FIRST, SECOND = (Partition(PUSHES.name, number) for number in range(2))


def command(time_ms: int) -> NewRecord:
    return NewRecord(PUSH_COMMANDS.name, 0, b"", PushCommand(meta=Meta(time_ms=time_ms)).SerializeToString())


def fact(number: int, time_ms: int, because_of: int | None = None) -> NewRecord:
    cause = None if because_of is None else Position(topic=PUSH_COMMANDS.name, offset=because_of)
    return NewRecord(PUSHES.name, number, b"", PushFact(meta=Meta(time_ms=time_ms, cause=cause)).SerializeToString())


def outcome(time_ms: int, because_of: int) -> NewRecord:
    meta = Meta(time_ms=time_ms, cause=Position(topic=PUSHES.name, partition=0, offset=because_of))
    return NewRecord(DELIVERIES.name, 0, b"", DeliveryFact(meta=meta).SerializeToString())


async def merged(log: Log, *, starts: dict[Partition, int] | None = None, ahead_ms: int = 0) -> list[Record]:
    ends = await log.ends([COMMANDS, FIRST, SECOND, OUTCOMES])
    merge = MergedReader(log, starts or {}, ends, {PUSH_COMMANDS.name: ahead_ms})
    try:
        return [dated.record async for batch in merge.batches() for dated in batch]
    finally:
        await merge.close()


def places(records: Sequence[Record]) -> list[tuple[str, int, int]]:
    return [(record.topic.removeprefix("push-"), record.partition, record.offset) for record in records]


async def test_records_come_in_the_order_of_their_times(log: Log) -> None:
    await log.append([fact(0, 20), fact(0, 40), fact(1, 10), fact(1, 30), command(15), command(45)])
    assert places(await merged(log)) == [
        ("pushes", 1, 0),
        ("commands", 0, 0),
        ("pushes", 0, 0),
        ("pushes", 1, 1),
        ("pushes", 0, 1),
        ("commands", 0, 1),
    ]
    ahead = await merged(log, ahead_ms=25)
    assert places(ahead)[:3] == [("commands", 0, 0), ("pushes", 1, 0), ("commands", 0, 1)]
    assert places(await merged(log, starts={FIRST: 2, COMMANDS: 1})) == [
        ("pushes", 1, 0),
        ("pushes", 1, 1),
        ("commands", 0, 1),
    ]


async def test_a_partition_keeps_its_order_when_its_clock_was_set_back(log: Log) -> None:
    await log.append([fact(0, 50), fact(0, 10), fact(1, 20), fact(1, 60)])
    records = await merged(log)
    assert [r.offset for r in records if r.partition == 0] == [0, 1]
    assert [r.offset for r in records if r.partition == 1] == [0, 1]
    assert places(records)[-1] == ("pushes", 1, 1)
    assert places(records)[0] == ("pushes", 1, 0)


async def test_no_record_comes_before_its_cause(log: Log) -> None:
    """The edge's clock is far ahead of delivery's."""
    await log.append([command(1_000_000 + n) for n in range(500)])
    await log.append([fact(n % 2, 100 + n, because_of=n) for n in range(500)])
    records = await merged(log)
    assert len(records) == 1000
    done = -1
    for record in records:
        if record.topic == PUSH_COMMANDS.name:
            done = record.offset
        else:
            assert PushFact.FromString(record.value).meta.cause.offset <= done


async def test_a_cause_comes_behind_its_own_cause(log: Log) -> None:
    """Each writer's clock is far behind that of the one before."""
    await log.append([command(3_000_000 + n) for n in range(3)])
    await log.append([fact(0, 2_000_000, because_of=0), fact(0, 2_000_001, because_of=2)])
    await log.append([outcome(1_000_000, because_of=1), outcome(1_000_001, because_of=1)])
    assert places(await merged(log)) == [
        ("commands", 0, 0),
        ("pushes", 0, 0),
        ("commands", 0, 1),
        ("commands", 0, 2),
        ("pushes", 0, 1),
        ("deliveries", 0, 0),
        ("deliveries", 0, 1),
    ]


async def test_a_record_that_cannot_be_decoded_keeps_its_place(log: Log) -> None:
    await log.append([command(10), NewRecord(PUSH_COMMANDS.name, 0, b"", b"\xff\xff"), command(30), fact(0, 20)])
    assert places(await merged(log)) == [
        ("commands", 0, 0),
        ("commands", 0, 1),
        ("pushes", 0, 0),
        ("commands", 0, 2),
    ]
