"""Epochs follow from the records before them; a record with any other one is nobody's, and fences no owner."""

import pytest

from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import TaskFact, TaskSent
from services.log.port import Partition, Record
from services.replica.epochs import Epochs, ImpossibleEpochError, next_epoch

PARTITION = Partition("tasks", 0)
FIRST = next_epoch(0, lambda bits: 7)
MOST = (1 << 64) - 1


def announcement(epoch: int) -> TaskFact:
    return TaskFact(meta=Meta(event_id=b"a", epoch=epoch))


def fact(epoch: int) -> TaskFact:
    return TaskFact(meta=Meta(event_id=b"f", epoch=epoch), task_key="k", sent=TaskSent())


def admitted(epochs: Epochs, offset: int, message: TaskFact) -> bool:
    return epochs.admits(Record(*PARTITION, offset, b"", message.SerializeToString()), message)


@pytest.mark.parametrize("forged", [announcement(MOST), fact(MOST), announcement(1 << 62), fact(next_epoch(FIRST))])
def test_an_epoch_that_follows_from_no_claim_is_refused_and_fences_nobody(forged: TaskFact) -> None:
    epochs = Epochs()
    assert admitted(epochs, 0, announcement(FIRST))
    with pytest.raises(ImpossibleEpochError):
        admitted(epochs, 1, forged)
    assert admitted(epochs, 2, fact(FIRST))
    assert epochs.of(PARTITION) == FIRST


def test_behind_any_announcement_that_counts_a_later_owner_can_announce_a_higher_epoch() -> None:
    epochs = Epochs()
    highest = 0
    for bits in range(63, -1, -1):
        try:
            admitted(epochs, 5, announcement(1 << bits))
        except ImpossibleEpochError:
            continue
        highest = epochs.of(PARTITION)
        break
    assert highest
    assert admitted(epochs, 6, announcement(next_epoch(highest)))


def test_where_retention_has_removed_the_announcements_the_first_epoch_counts() -> None:
    epochs = Epochs()
    assert admitted(epochs, 70_000, fact(FIRST))
    assert not admitted(epochs, 70_001, fact(FIRST - 1))
