"""Facts without a command, written by `Follower.write`: their order among commands, and their durability."""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
import pytest

from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import TaskFact, TaskFellDue
from services.domain.topics import TASK_COMMANDS, TASKS
from services.log.port import Log, NewRecord, Partition
from services.log.topics import partition_of
from services.replica.fencing import SupersededError
from services.replica.store import Fact
from services.scheduling import decide
from services.scheduling.projection import SchedulingProjection
from testkit.faults.crashing_log import KilledError
from tests.services.scheduling.conftest import PARTITIONS, CrashOnRecordLog, SchedulingHarness, started


class HeldAppendsLog(CrashOnRecordLog):
    """Holds back facts that a task fell due until `released` is set; `arrived` is set by the first one."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if new_records[0].topic == TASKS.name and TaskFact.FromString(new_records[0].value).HasField("fell_due"):
            self.arrived.set()
            await self.released.wait()
        return await super().append(new_records)


async def test_a_write_whose_caller_was_cancelled_completes_before_the_next_command(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t")
    state = _state(harness, slow := HeldAppendsLog(harness.log))
    async with started([state]):
        partition = partition_of(b"t", PARTITIONS)
        fact = Fact(TASKS, partition, b"t", decide.fell_due("t", 5))
        caller = asyncio.create_task(state.follower.write(lambda: [fact]))
        await slow.arrived.wait()
        caller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caller
        await harness.cancel("t", wait=False)
        slow.released.set()
        async with asyncio.timeout(60):
            await state.follower.applied.wait([(Partition(TASK_COMMANDS.name, partition), 1)])

        assert [fact.task_key for fact in await harness.facts("fell_due")] == ["t"]
        assert await harness.facts("cancelled") == []


async def test_a_write_that_cannot_be_appended_leaves_the_state_unchanged(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t")
    state = _state(harness, harness.log)
    async with started([state]):
        harness.log.when = lambda message: True
        before = await state.follower.query(state.digest)
        fact = Fact(TASKS, partition_of(b"t", PARTITIONS), b"t", decide.fell_due("t", 5))
        with pytest.raises(KilledError):
            await state.follower.write(lambda: [fact])
        assert await state.follower.query(state.digest) == before


async def test_a_second_process_takes_over_and_the_first_one_stops(harness: SchedulingHarness) -> None:
    """Both are given the same partitions by mistake. The error of the first one names the setting to correct."""
    first = _state(harness, harness.log)
    ready = asyncio.Event()
    running = asyncio.create_task(first.run(ready))
    async with asyncio.timeout(60):
        await ready.wait()
    harness.settings = msgspec.structs.replace(harness.settings, data_dir=str(harness.directory / "2"))
    async with harness.running():
        with pytest.raises(SupersededError, match=r"another process .* has taken over tasks/\d.* CARILLON_SHARD"):
            await asyncio.wait_for(running, 60)
        await harness.create("t", in_s=5)
        harness.clock.move(5)
        await harness.until_sent(1)
        assert len(await harness.sent_pushes()) == 1


def _state(harness: SchedulingHarness, log: Log) -> SchedulingProjection:
    settings = harness.settings
    return SchedulingProjection(settings, settings.state_dir("scheduling"), log, harness.clock)


async def test_a_former_owners_record_counts_as_applied(harness: SchedulingHarness) -> None:
    """It may be the last one of its partition, so that a caller that waits for all of it would wait for ever."""
    partition = Partition(TASKS.name, 0)
    state = _state(harness, harness.log)
    async with started([state]), asyncio.timeout(60):
        former = TaskFact(meta=Meta(epoch=1, event_id=b"former"), task_key="t", fell_due=TaskFellDue())
        (offset,) = await harness.log.append([NewRecord(*partition, b"t", former.SerializeToString())])
        await state.follower.applied.wait([(partition, offset)])
