"""Killed anywhere and started again from any snapshot, delivery knows what it knew and starts every push once."""

import asyncio
from collections import Counter

import pytest

from protos.push.v1.push_pb2 import CancelPush
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.main import build, open_state
from services.delivery.state import serialization
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES
from services.runtime.log.port import NewRecord, Partition
from services.runtime.projection import replay
from testkit.delivery_records import RECEIVED, SENT, NumberedDevice, OutcomeRow, stag_audience
from testkit.delivery_role import DeliveryHarness
from testkit.event_loop import run_ready_tasks

A, B, C = NumberedDevice(0, 0), NumberedDevice(1, 0), NumberedDevice(0, 1)


async def starts(delivery: DeliveryHarness) -> Counter[tuple[int, int]]:
    return Counter((f.msgid, f.partition) for f in await delivery.push_facts() if f.WhichOneof("fact") == "started")


@pytest.mark.parametrize("from_nothing", [False, True])
async def test_the_state_is_restored_from_a_snapshot_or_from_the_log_alone(
    delivery: DeliveryHarness, from_nothing: bool
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B, C)
        everyone = await delivery.send()
        listed = await delivery.send(A, B, A, id_count=3)
        over = await delivery.send(A)
        gateway.acknowledge((everyone, A), (listed, A), (over, A))
        await delivery.expect_outcomes(*(OutcomeRow(msgid, A, RECEIVED) for msgid in (everyone, listed, over)))
    if from_nothing:
        delivery.write_snapshot(None)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B), (3, C))
        await gateway.expect((2, everyone), (3, everyone), (1, listed + 2), (2, listed + 1))
        assert set((await starts(delivery)).values()) == {1}
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
        fold = open_state(delivery.settings, delivery.directory / "delivery", delivery.log)
        digests.add(fold.digest())
        assert (await delivery.verify()).equal
    assert len(digests) == 1
    assert set((await starts(delivery)).values()) == {1}


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
        assert await starts(delivery) == {(push.msgid, n): 1 for push in (first, second) for n in (0, 1)}
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
    assert set((await starts(delivery)).values()) == {1}


async def test_a_cancel_not_written_before_a_kill_is_written_after_the_restart(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A)
        kept = await delivery.send(A)
        msgid = await delivery.send()
        delivery.log.kept_records = 1
        delivery.log.kill_at = lambda new_record: new_record.topic == PUSHES.name
        await delivery.command(CancelPush(msgid=msgid, appkey="1000000001"), wait_applied=False)
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
        await delivery.command(CancelPush(msgid=msgid, appkey="1000000001"), wait_applied=False)
        await delivery.log.died.wait()
    delivery.log.restart()
    fold = open_state(delivery.settings, delivery.directory / "none", delivery.log)
    await replay.rebuild(
        lambda directory, log: open_state(delivery.settings, directory, log),
        delivery.directory / "delivery",
        delivery.log,
        await delivery.log.ends(fold.partitions),
        lambda count: None,
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


async def test_a_command_that_is_in_the_log_twice_starts_one_push(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        push, over = delivery.push(A), delivery.push(A)
        await delivery.command(push, over, push)
        gateway.acknowledge((over.msgid, A))
        await delivery.expect_outcomes(OutcomeRow(over.msgid, A, RECEIVED))
        await delivery.command(push, over)
        marker = await delivery.send(A)
        await gateway.expect((1, push.msgid), (1, over.msgid), (1, marker))
    for snapshot in (delivery.read_snapshot(), None):
        delivery.write_snapshot(snapshot)
        async with delivery.running():
            await delivery.command(push, over)
            assert set((await starts(delivery)).values()) == {1}
    assert (await delivery.verify()).equal


async def test_a_kill_during_the_restore_leaves_the_snapshot_unchanged(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running():
        await delivery.register(A)
        msgid = await delivery.send()
    before = delivery.read_snapshot()
    async with delivery.running():
        later = await delivery.send(A)
    delivery.write_snapshot(before)
    role = build(delivery.settings, delivery.role_context())
    restoring = asyncio.create_task(role.services[0].run(asyncio.Event()))
    await asyncio.sleep(0)
    restoring.cancel()
    await asyncio.wait([restoring])
    assert delivery.read_snapshot() == before
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.expect((1, msgid), (1, later))


async def test_a_snapshot_that_is_taken_while_facts_are_folded_gives_the_same_state(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B, C)
        msgids = [await delivery.send(*((A, B) if n % 2 else ())) for n in range(8)]
        fold = delivery.store()
        offsets = dict(delivery.events().offsets)
        blobs = serialization.dump(fold.state)
        taken = [next(blobs) for _ in range(5)]
        gateway.acknowledge(*((msgid, A) for msgid in msgids), (msgids[1], B))
        await delivery.expect_outcomes(
            *(OutcomeRow(msgid, A, RECEIVED) for msgid in msgids), OutcomeRow(msgids[1], B, RECEIVED)
        )
        await delivery.cancel(msgids[6])
        late = await delivery.send()
        taken += blobs
    fold.file.save(offsets, taken)
    assert (await delivery.verify()).equal
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await gateway.wait_until(lambda: len(gateway.received) >= 7)
        assert {got.msgid for got in gateway.received if got.connection == 1} == {late}


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
        async with asyncio.timeout(10):
            while delivery.read_snapshot() is None:
                await asyncio.sleep(0)
        saved = delivery.read_snapshot()
    delivery.write_snapshot(saved)
    assert msgid in open_state(delivery.settings, delivery.directory / "delivery", delivery.log).state.started


async def test_an_unreadable_command_becomes_a_dead_letter_and_the_next_is_decided(delivery: DeliveryHarness) -> None:
    no_audience = delivery.push(A)
    no_audience.ClearField("audience")
    torn = delivery.push(A)
    torn.audience.devices.numbers = b"123"
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        await delivery.log.append([NewRecord(PUSH_COMMANDS.name, 0, b"", b"\xff\xff\xff")])
        await delivery.command(no_audience, torn)
        msgid = await delivery.send(A)
        await gateway.expect((1, msgid))
        parked = (delivery.directory / "dead-letters" / "delivery.jsonl").read_text().splitlines()
        assert len(parked) == 3
    assert (await delivery.verify()).equal


async def test_pushes_wait_while_targeting_is_unavailable_and_then_start_in_order(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A)
    async with delivery.running(hide_targeting=True), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        first, second = delivery.push(), delivery.push(A)
        await delivery.command(first, second, wait_applied=False)
        await delivery.advance(5, steps=5)
        assert gateway.received == []
        delivery.show_targeting()
        await delivery.advance(1)
        await gateway.expect((1, first.msgid), (1, second.msgid))


async def test_a_push_whose_audience_targeting_refuses_is_sent_to_no_device(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        gateway.connect((1, A))
        await run_ready_tasks()
        refused = delivery.push(audience=stag_audience("x"))
        refused.audience.filter.activity.add(days=12345)
        await delivery.command(refused)
        assert [fact.started.count for fact in await delivery.push_facts() if fact.msgid == refused.msgid] == [0, 0]
        marker = await delivery.send(A)
        await gateway.expect((1, marker))


async def test_facts_name_the_command_that_caused_them(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        (offset,) = await delivery.command(push := delivery.push(A))
        (cancelled_at,) = await delivery.command(CancelPush(msgid=push.msgid, appkey=push.appkey))
        causes = [(fact.meta.writer, fact.meta.cause.offset) for fact in await delivery.push_facts()]
        assert causes == [("delivery", offset), ("delivery", cancelled_at)]
        assert all(fact.meta != Meta() and len(fact.meta.event_id) == 16 for fact in await delivery.push_facts())
        assert (await delivery.log.ends([Partition(PUSHES.name, 1)]))[Partition(PUSHES.name, 1)] == 0
