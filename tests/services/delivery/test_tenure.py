"""Two delivery processes with the same shard on one log: one owns it, the other one stands by and takes over."""

import pytest

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest, HasCapacityRequest
from protos.delivery.v1.delivery_pb2_grpc import CapacityServiceStub, DeliveryServiceStub
from protos.push.v1.push_pb2 import CancelPush
from protos.runtime.v1.log_pb2 import AwaitRequest
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from services.delivery import tenure
from services.errors import NotOwnerError
from services.replica.fencing import SupersededError
from testkit.delivery.gateway import GatewayClient
from testkit.delivery.records import APP, RECEIVED, SENT, START_MS, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.delivery.processes import running

A, B = NumberedDevice(0, 0), NumberedDevice(1, 1)


async def test_a_standby_folds_what_the_owner_writes_and_answers_no_call(delivery: DeliveryHarness) -> None:
    async with running(delivery) as (processes, gateway):
        owner = await processes.start("a")
        second = await processes.start("b")
        gateway.connect(1, A)
        await processes.command(first := delivery.push(A, B))
        await gateway.until((1, first.msgid))
        gateway.acknowledge(A, first.msgid)
        await gateway.until_recorded()
        await processes.command(cancelled := delivery.push(B))
        await processes.command(CancelPush(msgid=cancelled.msgid, appkey=APP))
        await until_holds(lambda: not owner.store.state.pending_cancels)
        await processes.folded(owner)
        await processes.folded(second)
        assert second.store.digest() == owner.store.digest()
        channel = second.server.channel()
        with pytest.raises(NotOwnerError):
            await DeliveryServiceStub(channel).GetBroadcast(GetBroadcastRequest(msgid=1, appkey=APP))
        with pytest.raises(NotOwnerError):
            await CapacityServiceStub(channel).HasCapacity(HasCapacityRequest(appkey=APP))
        with pytest.raises(NotOwnerError):
            await PositionsServiceStub(channel).Await(AwaitRequest())
        with pytest.raises(NotOwnerError):
            await GatewayClient(channel).task
        assert not second.tenure.tenure.is_held


async def test_after_a_planned_stop_nothing_is_sent_twice_and_nothing_is_left_out(delivery: DeliveryHarness) -> None:
    async with running(delivery) as (processes, gateway):
        first = await processes.start("a")
        await processes.start("b")
        gateway.connect(1, A)
        await processes.command(before := delivery.push(A))
        await gateway.until((1, before.msgid))
        gateway.acknowledge(A, before.msgid)
        await first.stop()
        await processes.until_owner("b")
        gateway.connect(2, B)
        await processes.command(after := delivery.push(A, B))
        await gateway.until((1, before.msgid), (1, after.msgid), (2, after.msgid))
        gateway.acknowledge(A, after.msgid)
        gateway.acknowledge(B, after.msgid)
        await gateway.until_recorded()
        await delivery.expect_outcomes(
            *(OutcomeRow(msgid, device, RECEIVED) for msgid, device in _each(before.msgid, after.msgid))
        )
        await processes.by_address["b"].stop()
        assert (await processes.verify("b")).equal


async def test_reports_that_a_killed_owner_did_not_confirm_are_recorded_once_by_the_next(
    delivery: DeliveryHarness,
) -> None:
    async with running(delivery) as (processes, gateway):
        first = await processes.start("a")
        await processes.start("b")
        gateway.connect(1, A)
        await processes.command(push := delivery.push(A))
        await gateway.until((1, push.msgid))
        await delivery.expect_outcomes(OutcomeRow(push.msgid, A, SENT))
        first.log.takes_outcomes.clear()
        gateway.acknowledge(A, push.msgid)
        await until_holds(lambda: first.recorder.has_unwritten_final(A.partition, push.msgid, A.number))
        await first.kill()
        await processes.until_owner("b")
        await gateway.until_recorded()
        assert gateway.messages == [(1, push.msgid)]
        await delivery.expect_outcomes(OutcomeRow(push.msgid, A, RECEIVED))
        await processes.by_address["b"].stop()
        assert (await processes.verify("b")).equal


async def test_late_records_of_an_owner_that_was_paused_count_nowhere(delivery: DeliveryHarness) -> None:
    """Its stream to the gateway stays open meanwhile, and the gateway leaves it all the same."""
    async with running(delivery) as (processes, gateway):
        former = await processes.start("a")
        await processes.start("b")
        gateway.connect(1, A)
        await processes.command(push := delivery.push(A, B))
        await gateway.until((1, push.msgid))
        await delivery.expect_outcomes(OutcomeRow(push.msgid, A, SENT))
        former.log.takes_outcomes.clear()
        gateway.acknowledge(A, push.msgid)
        await until_holds(lambda: former.recorder.has_unwritten_final(A.partition, push.msgid, A.number))
        former.log.is_connected.clear()
        successor = await processes.until_owner("b")
        await gateway.until_recorded()
        former.log.takes_outcomes.set()
        former.log.is_connected.set()
        with pytest.raises(SupersededError):
            await former.end()
        assert successor.store.state.started[push.msgid].active_parts.keys() == {B.partition}
        gateway.connect(2, B)
        await gateway.until((1, push.msgid), (2, push.msgid))
        await processes.by_address["b"].stop()
        assert (await processes.verify("b")).equal


async def test_an_owner_that_may_have_a_successor_sends_nothing_before_the_log_has_its_start(
    delivery: DeliveryHarness,
) -> None:
    """It might otherwise send a push that the successor has cancelled."""
    async with running(delivery) as (processes, gateway):
        owner = await processes.start("a")
        gateway.connect(1, A)
        await processes.command(first := delivery.push(A))
        await gateway.until((1, first.msgid))
        await delivery.expect_outcomes(OutcomeRow(first.msgid, A, SENT))
        owner.log.is_connected.clear()
        await until_holds(lambda: not owner.membership.is_confirmed)
        await delivery.command(second := delivery.push(A), wait_applied=False)
        await until_holds(lambda: second.msgid in owner.store.state.requested)
        await run_ready_tasks()
        assert (gateway.messages, owner.events.unwritten) == ([(1, first.msgid)], 0)
        owner.log.is_connected.set()
        await gateway.until((1, first.msgid), (1, second.msgid))


async def test_an_expiry_that_waits_and_the_badges_are_kept(delivery: DeliveryHarness) -> None:
    async with running(delivery) as (processes, _):
        first = await processes.start("a")
        second = await processes.start("b")
        await processes.command(push := delivery.push(A, period_s=60))
        await delivery.wait_facts("started", 1)
        first.recorder.record(B.partition, APP, push.msgid, B.number, SENT, START_MS, badge=7)
        await first.recorder.wait_recorded()
        await processes.folded(second)
        await first.stop()
        await processes.until_owner("b")
        assert second.store.state.badges.last((APP, B.partition), B.number, 0) == 7
        delivery.clock.move(61)
        await delivery.wait_facts("finished", 1)
        assert await delivery.facts(push.msgid) == [("started", A.partition), ("finished", A.partition)]


async def test_a_standby_that_is_far_behind_reads_the_log_merged(
    delivery: DeliveryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure, "MAX_HELD_BYTES", -1)
    async with running(delivery) as (processes, _):
        owner = await processes.start("a")
        second = await processes.start("b")
        for _ in range(3):
            await processes.command(delivery.push(A, B))
        await delivery.wait_facts("started", 6)
        await processes.folded(owner)
        await processes.folded(second)
        assert second.store.digest() == owner.store.digest()


async def test_a_standby_that_is_elected_before_it_has_opened_a_reader_folds_all(delivery: DeliveryHarness) -> None:
    async with running(delivery) as (processes, _):
        owner = await processes.start("a")
        second = await processes.start("b")
        await second.stop()
        for _ in range(3):
            await processes.command(delivery.push(A, B))
        await delivery.wait_facts("started", 6)
        await processes.folded(owner)
        await second.tenure._standby.fold_until(await delivery.log.ends(second.store.partitions))
        assert second.store.digest() == owner.store.digest()


def _each(*msgids: int) -> list[tuple[int, NumberedDevice]]:
    first, second = msgids
    return [(first, A), (second, A), (second, B)]
