"""Owners of partitions on every log: the order of the log alone decides whose facts count."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from protos.scheduling.v1.scheduling_pb2 import TaskFact, TaskFailed
from services.domain.topics import TASKS
from services.errors import UnavailableError
from services.log.port import Log, NewRecord, Partition, Reader, TrimmedError
from services.replica.fencing import SupersededError
from services.replica.store import Fact
from tests.contract.log.reading import read_to_end
from tests.contract.log.task_counter import BOUND_S, FACTS, HeldLog, Owner, command


class TrimmedLog(HeldLog):
    """The log of a process that cannot read records any more once `is_trimmed` is set; no record is removed."""

    is_trimmed = False

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        if self.is_trimmed:
            raise TrimmedError("the records are not in the log any more")
        return await super().open(starts)


async def test_what_a_superseded_owner_writes_is_ignored_by_every_reader(log: Log, tmp_path: Path) -> None:
    """It was held up before an append, and its successor has decided the same commands meanwhile."""
    held = HeldLog(log)
    former = Owner(held, tmp_path / "former")
    await former.is_ready()
    await former.decide(log, "a", "b", "c")
    held.go_on.clear()
    await command(log, "a", "b", "c")
    await asyncio.wait_for(held.waiting.wait(), BOUND_S)

    successor = Owner(log, tmp_path / "successor")
    await successor.is_ready()
    await successor.decide(log, "a")
    held.go_on.set()
    await former.ends_with(SupersededError)
    await successor.decide(log, "a")

    expected = {"a": 4, "b": 2, "c": 2}
    assert successor.counts() == expected
    await successor.stop()
    facts = [TaskFact.FromString(record.value) for record in await read_to_end(log, dict.fromkeys(FACTS, 0))]
    assert sum(fact.HasField("failed") for fact in facts) > sum(expected.values()), "nothing came late"
    reader = Owner(log, tmp_path / "reader")
    await reader.is_ready()
    assert reader.counts() == expected
    await reader.stop()


async def test_an_idle_owner_stops_when_another_process_takes_over(log: Log, tmp_path: Path) -> None:
    former = Owner(log, tmp_path / "former")
    await former.is_ready()
    await former.decide(log, "a", "b", "c")
    successor = Owner(log, tmp_path / "successor")
    await successor.is_ready()
    await former.ends_with(SupersededError)
    assert successor.counts() == {"a": 1, "b": 1, "c": 1}
    await successor.stop()


async def test_an_owner_goes_on_after_records_that_are_no_successors(log: Log, tmp_path: Path) -> None:
    """The records are duplicates of its own ones, and late ones of a former owner."""
    former = Owner(log, tmp_path / "former")
    await former.is_ready()
    await former.decide(log, "a", "b", "c")
    await former.stop()
    owner = Owner(log, tmp_path / "owner")
    await owner.is_ready()
    await owner.decide(log, "a")
    late = await read_to_end(log, dict.fromkeys(FACTS, 0))
    await log.append([NewRecord(TASKS.name, record.partition, record.key, record.value) for record in late])
    await owner.decide(log, "a", "b", "c")
    assert owner.counts() == {"a": 3, "b": 2, "c": 2}
    await owner.stop()


async def test_an_owner_that_cannot_read_what_lies_before_its_facts_ends_and_its_next_start_applies_them(
    log: Log, tmp_path: Path
) -> None:
    """They are in the log, so that it may neither take them back nor say that they were refused."""
    trimmed = TrimmedLog(log)
    owner = Owner(trimmed, tmp_path / "owner")
    await owner.is_ready()
    await owner.decide(log, "a")
    trimmed.go_on.clear()
    fact = Fact(TASKS, FACTS[0].number, b"a", TaskFact(task_key="a", failed=TaskFailed(reason="20")))
    writing = asyncio.create_task(owner.follower.write(lambda: [fact]))
    await asyncio.wait_for(trimmed.waiting.wait(), BOUND_S)
    stored_twice = await read_to_end(log, {FACTS[0]: 0})
    await log.append([NewRecord(TASKS.name, record.partition, record.key, record.value) for record in stored_twice])
    trimmed.is_trimmed = True
    trimmed.go_on.set()
    await owner.ends_with(UnavailableError)
    with pytest.raises(UnavailableError, match="not in the log any more; the next start applies what is in the log"):
        await writing

    again = Owner(log, tmp_path / "owner")
    await again.is_ready()
    await again.decide(log, "a")
    assert again.counts() == {"a": 21}
    await again.stop()
