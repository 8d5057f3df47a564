"""A former process of delivery whose records the log stores late, or that does not know of its successor."""

import pytest

from services.delivery.event_writer import EventWriter, NewFact
from services.delivery.main import open_state
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.store import DeliveryStore
from services.domain.topics import DELIVERIES
from services.log.port import NewRecord, Partition
from services.replica.fencing import SupersededError
from testkit.delivery.records import APP, RECEIVED, SENT, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from tests.services.delivery.state.records import outcomes_fact

A, B = NumberedDevice(0, 0), NumberedDevice(0, 1)
OUTCOMES = Partition(DELIVERIES.name, 0)


async def started_writer(delivery: DeliveryHarness) -> EventWriter:
    """Return the writer of a process that starts now, on a state directory of its own."""
    store = open_state(delivery.settings, delivery.directory / "other", delivery.log)
    writer = EventWriter(delivery.log, store.state, delivery.clock)
    await catch_up(delivery, store)
    await delivery.log.append(writer.announcements())
    await catch_up(delivery, store)
    writer.begin(store.offsets())
    return writer


async def catch_up(delivery: DeliveryHarness, store: DeliveryStore) -> None:
    ends = await delivery.log.ends(store.partitions)
    for follower in store.followers:
        await follower.apply_until(ends, lambda count: None)


def received(msgid: int, at: NumberedDevice) -> NewFact:
    return NewFact(at.partition, APP.encode(), outcomes_fact(APP, [(msgid, at.number, RECEIVED)]))


async def test_an_outcome_that_the_log_stores_after_the_successors_start_counts_nowhere(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running():
        await delivery.register(A, B)
        msgid = await delivery.send()
        former_epoch = delivery.store().state.epochs.of(OUTCOMES)
    async with delivery.running(), delivery.gateway() as gateway:
        late = outcomes_fact(APP, [(msgid, A.number, RECEIVED)])
        late.meta.epoch = former_epoch
        await delivery.log.append([NewRecord(*OUTCOMES, b"", late.SerializeToString())])
        gateway.connect((1, A), (2, B))
        await gateway.expect((1, msgid), (2, msgid))
        gateway.acknowledge((msgid, B))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED), OutcomeRow(msgid, B, RECEIVED))
    assert (await delivery.verify()).equal
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((3, A), (4, B))
        await gateway.expect((3, msgid))


async def test_a_process_that_has_a_successor_writes_nothing_that_counts(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        msgid = await delivery.send(A, B)
        former, state = delivery.events(), delivery.store().state
        successor = await started_writer(delivery)
        with pytest.raises(SupersededError, match="another process of the role delivery has taken over deliveries/0"):
            await former.write(DELIVERIES, [received(msgid, A)])
        assert state.started[msgid].active_parts[0].pending_msgids(A.number) == [msgid]
        await successor.write(DELIVERIES, [received(msgid, B)])
        push = successor._state.started[msgid].active_parts[0]
        assert (push.pending_msgids(A.number), push.pending_msgids(B.number)) == ([msgid], [])
        with pytest.raises(SupersededError):
            await former.write(DELIVERIES, [received(msgid, A)])
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await gateway.expect((1, msgid))
    assert (await delivery.verify()).equal


async def test_own_records_that_the_log_stored_twice_are_applied_in_its_order(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        msgid = await delivery.send(A)
        events, state = delivery.events(), delivery.store().state
        sent = outcomes_fact(APP, [(msgid, B.number, SENT)])
        sent.meta.epoch = state.epochs.of(OUTCOMES)
        await delivery.log.append([NewRecord(*OUTCOMES, b"", sent.SerializeToString())])
        await events.write(DELIVERIES, [received(msgid, A)])
        assert state.sent_messages.was_sent(DeviceAddress(APP, *B), msgid)
        assert events.offsets == await delivery.log.ends(events.offsets)
    assert (await delivery.verify()).equal
