"""Facts that the role decides by itself keep the order and the durability of those that follow from commands."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from services.domain.topics import TASK_COMMANDS, TASKS
from services.runtime.log.port import NewRecord, Partition
from services.runtime.log.topics import partition_of
from services.runtime.projection.decider import Fact
from services.scheduling import decide
from services.scheduling.projection import SchedulingProjection
from testkit.faults.crashing_log import KilledError
from tests.roles.scheduling.conftest import PARTITIONS, ChosenLog, House, started


class SlowLog(ChosenLog):
    """Holds appends to `tasks` back until it is opened."""

    def __init__(self, log: ChosenLog) -> None:
        super().__init__(log)
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if new_records[0].topic == TASKS.name:
            self.arrived.set()
            await self.opened.wait()
        return await super().append(new_records)


async def test_a_note_whose_caller_went_away_is_still_concluded_before_the_next_command(house: House) -> None:
    async with house.running():
        await house.create("t")
    slow = SlowLog(house.log)
    state = SchedulingProjection(house.settings, house.settings.state_dir("scheduling"), slow)
    async with started([state]):
        partition = partition_of(b"t", PARTITIONS)
        fact = Fact(TASKS, partition, b"t", decide.fell_due("t", 5))
        caller = asyncio.create_task(state.follower.write(lambda: [fact]))
        await slow.arrived.wait()
        caller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await caller
        await house.cancel("t", settle=False)
        slow.opened.set()
        async with asyncio.timeout(5):
            await state.follower.applied.wait([(Partition(TASK_COMMANDS.name, partition), 1)])

        assert [fact.task_key for fact in await house.facts("fell_due")] == ["t"]
        assert await house.facts("cancelled") == []


async def test_a_note_that_cannot_be_appended_leaves_the_state_as_it_was(house: House) -> None:
    async with house.running():
        await house.create("t")
    house.log.when = lambda message: True
    state = SchedulingProjection(house.settings, house.settings.state_dir("scheduling"), house.log)
    async with started([state]):
        before = await state.follower.query(state.digest)
        fact = Fact(TASKS, partition_of(b"t", PARTITIONS), b"t", decide.fell_due("t", 5))
        with pytest.raises(KilledError):
            await state.follower.write(lambda: [fact])
        assert await state.follower.query(state.digest) == before
