"""A standby that is elected while it reads applies all that it has read."""

import asyncio

import pytest

from services.delivery.event_writer import EventWriter
from services.delivery.main import open_state
from services.delivery.tenure import Standby
from services.domain.topics import PUSH_COMMANDS, PUSHES
from services.log.port import Partition, Record
from services.replica.dead_letters import DeadLetters
from services.replica.positions import AppliedPositions
from testkit.delivery.records import NumberedDevice
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


def new_standby(delivery: DeliveryHarness) -> ReadingStandby:
    store = open_state(delivery.settings, delivery.directory / "standby", delivery.log)
    events = EventWriter(delivery.log, store.state, delivery.clock, store.reached)
    dead_letters = DeadLetters(delivery.directory / "dead-letters.jsonl", "delivery")
    return ReadingStandby(store, events, delivery.log, dead_letters, AppliedPositions())


async def test_records_that_waited_before_the_log_was_read_merged_are_not_applied_again(
    delivery: DeliveryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with delivery.running():
        await delivery.send(NumberedDevice(0, 0))
        await delivery.wait_facts("started", 1)
    standby = new_standby(delivery)
    await standby._open()
    standby._fold(standby._order.put(await delivery.records(Partition(PUSHES.name, 0))))
    assert standby._order.held_bytes
    await standby.close()
    await standby.catch_up()
    applied: list[Record] = []
    monkeypatch.setattr(standby._events, "apply", lambda record, message: applied.append(record))
    await standby.fold_until(await delivery.log.ends(standby._store.partitions))
    assert not applied


@pytest.mark.parametrize("steps", range(6))
async def test_what_is_read_during_the_election_is_applied(delivery: DeliveryHarness, steps: int) -> None:
    await delivery.command(push := delivery.push(), wait_applied=False)
    standby = new_standby(delivery)
    await (await standby._open()).close()
    standby.records = await delivery.records(Partition(PUSH_COMMANDS.name, 0))
    standby.arrived, standby.steps = asyncio.Event(), steps

    async def wait_elected() -> None:
        await asyncio.sleep(0)
        standby.arrived.set()

    await standby.follow(wait_elected())
    assert (push.msgid in standby._store.state.requested) == standby.was_read
