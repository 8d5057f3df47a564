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
from tests.roles.delivery.conftest import RECEIVED, SENT, At, House, Row, idle, with_stag

A, B, C = At(0, 0), At(1, 0), At(0, 1)


async def starts(house: House) -> Counter[tuple[int, int]]:
    return Counter((f.msgid, f.partition) for f in await house.push_facts() if f.WhichOneof("fact") == "started")


@pytest.mark.parametrize("from_nothing", [False, True])
async def test_the_state_comes_back_from_a_snapshot_and_from_the_log_alone(house: House, from_nothing: bool) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B, C)
        everyone = await house.send()
        listed = await house.send(A, B, A, id_count=3)
        over = await house.send(A)
        gateway.ack((everyone, A), (listed, A), (over, A))
        await house.recorded(*(Row(msgid, A, RECEIVED) for msgid in (everyone, listed, over)))
    if from_nothing:
        house.put_snapshot(None)
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A), (2, B), (3, C))
        await gateway.gets((2, everyone), (3, everyone), (1, listed + 2), (2, listed + 1))
        assert set((await starts(house)).values()) == {1}
        ends = await house.log.ends(house.fold().partitions)
        commands = Partition(PUSH_COMMANDS.name, 0)
        assert house.events().offsets[commands] == ends[commands]
    assert (await house.verify()).equal


async def test_every_earlier_snapshot_with_the_log_gives_the_same_state(house: House) -> None:
    snapshots: list[bytes | None] = [None]
    digests = set()
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B, C)
    msgids = []
    for turn in range(6):
        async with house.running(), house.gateway() as gateway:
            msgids.append(await house.send(*((A, B) if turn % 2 else ())))
            gateway.ack((msgids[turn // 2], A), (msgids[-1], B))
            if turn == 3:
                await house.cancel(msgids[1])
            if turn == 4:
                await house.move(3600)
                await house.until_facts("finished", 1)
        snapshots.append(house.take_snapshot())
    for snapshot in snapshots:
        house.put_snapshot(snapshot)
        async with house.running():
            await idle()
        fold = open_state(house.settings, house.directory / "delivery", house.log)
        digests.add(fold.digest())
        assert (await house.verify()).equal
    assert len(digests) == 1
    assert set((await starts(house)).values()) == {1}


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("from_nothing", [False, True])
async def test_killed_between_the_facts_of_several_partitions(house: House, keep: int, from_nothing: bool) -> None:
    async with house.running():
        await house.register(A, B)
    house.log.keep = keep
    async with house.running():
        house.log.when = lambda new_record: new_record.topic == PUSHES.name
        first, second = house.push(), house.push(A, B)
        await house.command(first, second, settle=False)
        await house.log.died.wait()
    if from_nothing:
        house.put_snapshot(None)
    async with house.running(), house.gateway() as gateway:
        assert await starts(house) == {(push.msgid, n): 1 for push in (first, second) for n in (0, 1)}
        gateway.connect((1, A), (2, B))
        await gateway.gets((1, first.msgid), (2, first.msgid), (1, second.msgid), (2, second.msgid))
    assert (await house.verify()).equal


async def test_what_started_before_the_kill_is_not_sent_again_when_the_rest_starts(house: House) -> None:
    async with house.running():
        await house.register(A, B)
    house.log.keep = 1
    async with house.running():
        house.log.when = lambda new_record: new_record.topic == PUSHES.name
        await house.command(push := house.push(), settle=False)
        msgid = push.msgid
        await house.log.died.wait()
    async with house.running(targeting_hidden=True), house.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await gateway.gets((1, msgid))
        house.shown()
        await house.move(1)
        await gateway.until(lambda: len(gateway.got) == 2)
        marker = await house.send(A)
        await gateway.gets((1, msgid), (2, msgid), (1, marker))
    assert set((await starts(house)).values()) == {1}


async def test_killed_before_a_cancel_was_written_it_is_done_after_the_start(house: House) -> None:
    async with house.running():
        await house.register(A)
        kept = await house.send(A)
        msgid = await house.send()
        house.log.keep = 1
        house.log.when = lambda new_record: new_record.topic == PUSHES.name
        await house.command(CancelPush(msgid=msgid, appkey="1000000001"), settle=False)
        await house.log.died.wait()
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.gets((1, kept))
        assert sorted(await house.facts(msgid)) == [("cancelled", 0), ("started", 0), ("started", 1)]


async def test_a_rebuilt_state_still_owes_the_cancel_that_was_not_done(house: House) -> None:
    async with house.running():
        await house.register(A)
        msgid = await house.send(A)
        house.log.when = lambda new_record: new_record.topic == PUSHES.name
        await house.command(CancelPush(msgid=msgid, appkey="1000000001"), settle=False)
        await house.log.died.wait()
    house.log.live_again()
    fold = open_state(house.settings, house.directory / "none", house.log)
    await replay.rebuild(
        lambda directory, log: open_state(house.settings, directory, log),
        house.directory / "delivery",
        house.log,
        await house.log.ends(fold.partitions),
        lambda count: None,
    )
    async with house.running():
        assert ("cancelled", 0) in await house.facts(msgid)


async def test_killed_before_the_acknowledgements_were_written_the_device_gets_it_again_with_the_same_id(
    house: House,
) -> None:
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A))
        await idle()
        msgid = await house.send(A)
        await house.recorded(Row(msgid, A, SENT))
        house.log.when = lambda new_record: new_record.topic == DELIVERIES.name
        gateway.ack((msgid, A))
        await house.log.died.wait()
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.gets((1, msgid))
        gateway.ack((msgid, A))
        await house.recorded(Row(msgid, A, RECEIVED))


async def test_a_command_that_is_in_the_log_twice_starts_one_push(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A))
        await idle()
        push, over = house.push(A), house.push(A)
        await house.command(push, over, push)
        gateway.ack((over.msgid, A))
        await house.recorded(Row(over.msgid, A, RECEIVED))
        await house.command(push, over)
        marker = await house.send(A)
        await gateway.gets((1, push.msgid), (1, over.msgid), (1, marker))
    for snapshot in (house.take_snapshot(), None):
        house.put_snapshot(snapshot)
        async with house.running():
            await house.command(push, over)
            assert set((await starts(house)).values()) == {1}
    assert (await house.verify()).equal


async def test_a_start_that_is_killed_while_it_restores_leaves_the_snapshot_as_it_was(house: House) -> None:
    async with house.running():
        await house.register(A)
        msgid = await house.send()
    before = house.take_snapshot()
    async with house.running():
        later = await house.send(A)
    house.put_snapshot(before)
    role = build(house.settings, house.role_context())
    restoring = asyncio.create_task(role.services[0].run(asyncio.Event()))
    await asyncio.sleep(0)
    restoring.cancel()
    await asyncio.wait([restoring])
    assert house.take_snapshot() == before
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.gets((1, msgid), (1, later))


async def test_a_snapshot_that_is_taken_while_facts_are_folded_gives_the_same_state(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B, C)
        msgids = [await house.send(*((A, B) if n % 2 else ())) for n in range(8)]
        fold = house.fold()
        offsets = dict(house.events().offsets)
        blobs = serialization.dump(fold.state)
        taken = [next(blobs) for _ in range(5)]
        gateway.ack(*((msgid, A) for msgid in msgids), (msgids[1], B))
        await house.recorded(*(Row(msgid, A, RECEIVED) for msgid in msgids), Row(msgids[1], B, RECEIVED))
        await house.cancel(msgids[6])
        late = await house.send()
        taken += blobs
    fold.file.save(offsets, taken)
    assert (await house.verify()).equal
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await gateway.until(lambda: len(gateway.got) >= 7)
        assert {got.msgid for got in gateway.got if got.connection == 1} == {late}


async def test_a_snapshot_forgets_a_cancel_whose_push_ended_while_it_was_taken(house: House) -> None:
    async with house.running():
        msgid = await house.send(A)
        state = house.fold().state
        state.pending_cancels[msgid] = 1
        blobs = serialization.dump(state)
        await house.cancel(msgid)
        loaded = DeliveryState(state.owned)
        serialization.load(loaded, list(blobs))
        assert (loaded.is_in_progress(msgid), loaded.pending_cancels) == (False, {})


async def test_a_running_delivery_saves_now_and_then(house: House) -> None:
    async with house.running():
        await house.register(A)
        msgid = await house.send()
        await house.move(house.settings.snapshot_s)
        async with asyncio.timeout(10):
            while house.take_snapshot() is None:
                await asyncio.sleep(0)
        saved = house.take_snapshot()
    house.put_snapshot(saved)
    assert msgid in open_state(house.settings, house.directory / "delivery", house.log).state.started


async def test_a_command_that_cannot_be_read_is_parked_and_the_rest_goes_on(house: House) -> None:
    no_audience = house.push(A)
    no_audience.ClearField("audience")
    torn = house.push(A)
    torn.audience.devices.numbers = b"123"
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A))
        await idle()
        await house.log.append([NewRecord(PUSH_COMMANDS.name, 0, b"", b"\xff\xff\xff")])
        await house.command(no_audience, torn)
        msgid = await house.send(A)
        await gateway.gets((1, msgid))
        parked = (house.directory / "parked" / "delivery.jsonl").read_text().splitlines()
        assert len(parked) == 3
    assert (await house.verify()).equal


async def test_while_targeting_is_away_pushes_wait_and_then_start_in_order(house: House) -> None:
    async with house.running():
        await house.register(A)
    async with house.running(targeting_hidden=True), house.gateway() as gateway:
        gateway.connect((1, A))
        await idle()
        first, second = house.push(), house.push(A)
        await house.command(first, second, settle=False)
        await house.move(5, steps=5)
        assert gateway.got == []
        house.shown()
        await house.move(1)
        await gateway.gets((1, first.msgid), (1, second.msgid))


async def test_an_audience_that_targeting_refuses_reaches_nobody_and_stops_nothing(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A)
        gateway.connect((1, A))
        await idle()
        refused = house.push(audience=with_stag("x"))
        refused.audience.filter.activity.add(days=12345)
        await house.command(refused)
        assert [fact.started.count for fact in await house.push_facts() if fact.msgid == refused.msgid] == [0, 0]
        marker = await house.send(A)
        await gateway.gets((1, marker))


async def test_facts_name_the_command_they_follow_from(house: House) -> None:
    async with house.running():
        (offset,) = await house.command(push := house.push(A))
        (cancelled_at,) = await house.command(CancelPush(msgid=push.msgid, appkey=push.appkey))
        causes = [(fact.meta.writer, fact.meta.cause.offset) for fact in await house.push_facts()]
        assert causes == [("delivery", offset), ("delivery", cancelled_at)]
        assert all(fact.meta != Meta() and len(fact.meta.event_id) == 16 for fact in await house.push_facts())
        assert (await house.log.ends([Partition(PUSHES.name, 1)]))[Partition(PUSHES.name, 1)] == 0
