"""A standby applies all that it has read when its turn comes, however close the two are."""

import asyncio

import pytest

from services.delivery.event_writer import EventWriter
from services.delivery.main import open_state
from services.delivery.standby import Standby
from services.domain.topics import PUSH_COMMANDS
from services.runtime.log.port import Partition, Record
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.positions import AppliedPositions
from testkit.delivery.role import DeliveryHarness


class ReadingStandby(Standby):
    """Its read ends some steps of the event loop after `arrived` is set; `was_read` tells whether it did."""

    records: list[Record]
    arrived: asyncio.Event
    steps: int
    was_read = False

    async def _more(self) -> list[Record]:
        await self.arrived.wait()
        for _ in range(self.steps):
            await asyncio.sleep(0)
        self.was_read = True
        return self.records


@pytest.mark.parametrize("steps", range(6))
async def test_what_is_read_as_the_turn_comes_is_applied(delivery: DeliveryHarness, steps: int) -> None:
    await delivery.command(push := delivery.push(), wait_applied=False)
    store = open_state(delivery.settings, delivery.directory / "standby", delivery.log)
    events = EventWriter(delivery.log, store.state, delivery.clock, store.reached)
    dead_letters = DeadLetters(delivery.directory / "dead-letters.jsonl", "delivery")
    standby = ReadingStandby(store, events, delivery.log, dead_letters, AppliedPositions())
    await (await standby._open()).close()
    standby.records = await delivery.records(Partition(PUSH_COMMANDS.name, 0))
    standby.arrived, standby.steps = asyncio.Event(), steps

    async def turn() -> None:
        await asyncio.sleep(0)
        standby.arrived.set()

    await standby.follow(turn())
    assert (push.msgid in store.state.requested) == standby.was_read
