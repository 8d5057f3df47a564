"""CausalOrder: records as they are read, each behind the cause that its meta names."""

from collections.abc import Sequence

from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.push.v1.push_pb2 import PushCommand
from protos.runtime.v1.log_pb2 import Meta, Position
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES, TOPICS
from services.log.port import Partition, Record
from services.replica.merge import CausalOrder, DecodedRecord

COMMANDS, STARTS, OUTCOMES = Partition(PUSH_COMMANDS.name, 0), Partition(PUSHES.name, 1), Partition(DELIVERIES.name, 1)
ENVELOPES = {PUSH_COMMANDS.name: PushCommand, PUSHES.name: PushFact, DELIVERIES.name: DeliveryFact}


def record(partition: Partition, offset: int, cause: tuple[Partition, int] | None = None) -> Record:
    meta = Meta(event_id=b"1")
    if cause is not None:
        meta.cause.CopyFrom(Position(topic=cause[0].topic, partition=cause[0].number, offset=cause[1]))
    return Record(*partition, offset, b"", ENVELOPES[partition.topic](meta=meta).SerializeToString())


def order(commands: int = 0, starts: int = 0, outcomes: int = 0) -> CausalOrder:
    return CausalOrder(TOPICS, {COMMANDS: commands, STARTS: starts, OUTCOMES: outcomes})


def positions(due: Sequence[DecodedRecord]) -> list[tuple[str, int]]:
    return [(each.record.topic, each.record.offset) for each in due]


def test_an_outcome_waits_for_the_start_of_its_push_and_that_one_for_the_command() -> None:
    causal = order()
    outcome, start = record(OUTCOMES, 0, (STARTS, 0)), record(STARTS, 0, (COMMANDS, 0))
    assert causal.put([outcome, start]) == []
    assert causal.held_bytes == len(outcome.value) + len(start.value)
    assert positions(causal.put([record(COMMANDS, 0)])) == [("push-commands", 0), ("pushes", 0), ("deliveries", 0)]
    assert causal.held_bytes == 0


def test_a_record_behind_one_that_waits_keeps_its_place() -> None:
    causal = order()
    assert causal.put([record(OUTCOMES, 0, (STARTS, 4)), record(OUTCOMES, 1)]) == []
    assert positions(causal.put([record(STARTS, 4)])) == [("pushes", 4), ("deliveries", 0), ("deliveries", 1)]


def test_causes_before_the_start_and_in_other_partitions_are_known() -> None:
    causal = order(starts=5)
    known = [record(OUTCOMES, 0, (STARTS, 4)), record(OUTCOMES, 1, (Partition("pushes", 7), 9))]
    assert positions(causal.put(known)) == [("deliveries", 0), ("deliveries", 1)]


def test_a_record_that_cannot_be_decoded_comes_without_an_envelope() -> None:
    (due,) = order().put([broken := Record(*COMMANDS, 0, b"", b"\xff")])
    assert due == (broken, None)


def test_the_rest_comes_partition_by_partition() -> None:
    causal = order()
    lost = [record(OUTCOMES, 0, (STARTS, 8)), record(STARTS, 7, (COMMANDS, 8)), record(OUTCOMES, 1)]
    assert causal.put(lost) == []
    assert positions(causal.rest()) == [("pushes", 7), ("deliveries", 0), ("deliveries", 1)]
    assert causal.held_bytes == 0
