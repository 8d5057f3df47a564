"""Recovery: killed at any point and started from any snapshot, delivery has its state and starts every push once."""

import asyncio
import dataclasses

import pytest

from protos.push.v1.push_pb2 import CancelPush
from services.delivery.main import build, open_state
from services.delivery.state import serialization
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.log.port import Partition
from services.replica import replay
from testkit.delivery.records import APP, RECEIVED, SENT, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.faults.slow_log import SlowLog
from testkit.services import stop
from testkit.waiting import run_ready_tasks

A, B, C = NumberedDevice(0, 0), NumberedDevice(1, 0), NumberedDevice(0, 1)


@pytest.mark.parametrize("from_nothing", [False, True])
async def test_the_state_is_restored_from_a_snapshot_or_from_the_log_alone(
    delivery: DeliveryHarness, from_nothing: bool
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B, C)
        gateway.connect((1, A))
        await run_ready_tasks()
        everyone = await delivery.send()
        listed = await delivery.send(A, B, A, id_count=3)
        concluded = await delivery.send(A)
        gateway.acknowledge((everyone, A), (listed, A), (concluded, A))
        await delivery.expect_outcomes(*(OutcomeRow(msgid, A, RECEIVED) for msgid in (everyone, listed, concluded)))
    if from_nothing:
        delivery.write_snapshot(None)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B), (3, C))
        await gateway.expect((2, everyone), (3, everyone), (1, listed + 2), (2, listed + 1))
        assert set((await delivery.start_counts()).values()) == {1}
        ends = await delivery.log.ends(delivery.store().partitions)
        commands = Partition(PUSH_COMMANDS.name, 0)
        assert delivery.events().offsets[commands] == ends[commands]
    assert (await delivery.verify()).equal


async def test_every_earlier_snapshot_with_the_log_gives_the_same_state(delivery: DeliveryHarness) -> None:
    snapshots: list[bytes | None] = [None]
    digests = set()
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B, C)
    msgids = []
    for turn in range(6):
        async with delivery.running(), delivery.gateway() as gateway:
            msgids.append(await delivery.send(*((A, B) if turn % 2 else ())))
            gateway.acknowledge((msgids[turn // 2], A), (msgids[-1], B))
            if turn == 3:
                await delivery.cancel(msgids[1])
            if turn == 4:
                await delivery.advance(3600)
                await delivery.wait_facts("finished", 1)
        snapshots.append(delivery.read_snapshot())
    for snapshot in snapshots:
        delivery.write_snapshot(snapshot)
        async with delivery.running():
            await run_ready_tasks()
        store = open_state(delivery.settings, delivery.directory / "delivery", delivery.log)
        digests.add(store.digest())
        assert (await delivery.verify()).equal
    assert len(digests) == 1
    assert set((await delivery.start_counts()).values()) == {1}


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("from_nothing", [False, True])
async def test_a_kill_between_the_facts_of_several_partitions_loses_none(
    delivery: DeliveryHarness, keep: int, from_nothing: bool
) -> None:
    async with delivery.running():
        await delivery.register(A, B)
    delivery.log.kept_records = keep
    async with delivery.running():
        delivery.log.kill_at = lambda new_record: new_record.topic == PUSHES.name
        first, second = delivery.push(), delivery.push(A, B)
        await delivery.command(first, second, wait_applied=False)
        await delivery.log.died.wait()
    if from_nothing:
        delivery.write_snapshot(None)
    async with delivery.running(), delivery.gateway() as gateway:
        assert await delivery.start_counts() == {(push.msgid, n): 1 for push in (first, second) for n in (0, 1)}
        gateway.connect((1, A), (2, B))
        await gateway.expect((1, first.msgid), (2, first.msgid), (1, second.msgid), (2, second.msgid))
    assert (await delivery.verify()).equal


async def test_partitions_started_before_a_kill_are_not_sent_again_when_the_rest_starts(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running():
        await delivery.register(A, B)
    delivery.log.kept_records = 1
    async with delivery.running():
        delivery.log.kill_at = lambda new_record: new_record.topic == PUSHES.name
        await delivery.command(push := delivery.push(), wait_applied=False)
        msgid = push.msgid
        await delivery.log.died.wait()
    async with delivery.running(hide_targeting=True), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await gateway.expect((1, msgid))
        delivery.show_targeting()
        await delivery.advance(1)
        await gateway.wait_until(lambda: len(gateway.received) == 2)
        marker = await delivery.send(A)
        await gateway.expect((1, msgid), (2, msgid), (1, marker))
    assert set((await delivery.start_counts()).values()) == {1}


async def test_a_cancel_not_written_before_a_kill_is_written_after_the_restart(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A)
        kept = await delivery.send(A)
        msgid = await delivery.send()
        delivery.log.kept_records = 1
        delivery.log.kill_at = lambda new_record: new_record.topic == PUSHES.name
        await delivery.command(CancelPush(msgid=msgid, appkey=APP), wait_applied=False)
        await delivery.log.died.wait()
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.expect((1, kept))
        assert sorted(await delivery.facts(msgid)) == [("cancelled", 0), ("started", 0), ("started", 1)]


async def test_a_rebuilt_state_still_has_the_cancel_that_was_not_written(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A)
        msgid = await delivery.send(A)
        delivery.log.kill_at = lambda new_record: new_record.topic == PUSHES.name
        await delivery.command(CancelPush(msgid=msgid, appkey=APP), wait_applied=False)
        await delivery.log.died.wait()
    delivery.log.restart()
    store = open_state(delivery.settings, delivery.directory / "none", delivery.log)
    await replay.rebuild(
        lambda directory, log: open_state(delivery.settings, directory, log),
        delivery.directory / "delivery",
        replay.ReplaySource(delivery.log, await delivery.log.ends(store.partitions)),
    )
    async with delivery.running():
        assert ("cancelled", 0) in await delivery.facts(msgid)


async def test_a_message_whose_acknowledgement_a_kill_lost_is_sent_again_with_the_same_id(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        msgid = await delivery.send(A)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, SENT))
        delivery.log.kill_at = lambda new_record: new_record.topic == DELIVERIES.name
        gateway.acknowledge((msgid, A))
        await delivery.log.died.wait()
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.expect((1, msgid))
        gateway.acknowledge((msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))


async def test_a_kill_during_the_restore_leaves_the_snapshot_unchanged(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A)
        msgid = await delivery.send()
    before = delivery.read_snapshot()
    async with delivery.running():
        later = await delivery.send(A)
    delivery.write_snapshot(before)
    log = SlowLog(delivery.log)
    role = build(delivery.settings, dataclasses.replace(delivery.role_context(), log=log))
    restoring = [asyncio.create_task(service.run(asyncio.Event())) for service in role.services[:2]]
    await log.read_begun.wait()
    await stop(restoring)
    assert delivery.read_snapshot() == before
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.expect((1, msgid), (1, later))


async def test_a_snapshot_that_is_taken_while_facts_are_folded_gives_the_same_state(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B, C)
        gateway.connect((1, A), (2, B))
        await run_ready_tasks()
        msgids = [await delivery.send(*((A, B) if n % 2 else ())) for n in range(8)]
        store = delivery.store()
        offsets = dict(delivery.events().offsets)
        blobs = serialization.dump(store.state)
        taken = [next(blobs) for _ in range(5)]
        gateway.acknowledge(*((msgid, A) for msgid in msgids), (msgids[1], B))
        await delivery.expect_outcomes(
            *(OutcomeRow(msgid, A, RECEIVED) for msgid in msgids), OutcomeRow(msgids[1], B, RECEIVED)
        )
        await delivery.cancel(msgids[6])
        await gateway.end()
        late = await delivery.send()
        taken += blobs
    store.file.save(offsets, taken)
    assert (await delivery.verify()).equal
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((3, A), (4, B))
        await gateway.wait_until(lambda: len(gateway.received) >= 7)
        assert {message.msgid for message in gateway.received if message.connection == 3} == {late}


async def test_a_loaded_snapshot_drops_a_cancel_whose_push_ended_while_it_was_taken(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        msgid = await delivery.send(A)
        state = delivery.store().state
        state.pending_cancels[msgid] = 1
        blobs = serialization.dump(state)
        await delivery.cancel(msgid)
        loaded = DeliveryState(state.owned)
        serialization.load(loaded, list(blobs))
        assert (loaded.is_in_progress(msgid), loaded.pending_cancels) == (False, {})


async def test_a_running_delivery_saves_snapshots_regularly(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A)
        msgid = await delivery.send()
        await delivery.advance(delivery.settings.snapshot_s)
        async with asyncio.timeout(60):
            while delivery.read_snapshot() is None:
                await asyncio.sleep(0)
        saved = delivery.read_snapshot()
    delivery.write_snapshot(saved)
    assert msgid in open_state(delivery.settings, delivery.directory / "delivery", delivery.log).state.started
