"""The ends of pushes: cancelled, expired, or dropped from a full mailbox."""

from protos.push.v1.push_pb2 import CancelPush
from services.delivery.decide import MAILBOX_CAP, UNACKNOWLEDGED_CAP
from testkit.delivery.records import DROPPED, OTHER_APP, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)


async def test_a_cancelled_push_is_not_sent_to_further_devices(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        gateway.connect((1, A))
        await run_ready_tasks()
        broadcast = await delivery.send()
        listed = await delivery.send(A, B)
        await gateway.expect((1, broadcast), (1, listed))
        await delivery.cancel(broadcast)
        await delivery.cancel(listed)
        await delivery.cancel(listed)
        gateway.connect((2, B), (3, A))
        marker = await delivery.send(A, B)
        await gateway.expect((1, broadcast), (1, listed), (3, marker), (2, marker))
        assert await delivery.facts(listed) == [("started", 0), ("cancelled", 0), ("started", 1), ("cancelled", 1)]


async def test_a_push_whose_cancel_follows_at_once_is_never_sent(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        gateway.connect((1, A))
        await run_ready_tasks()
        cancelled, kept = delivery.push(), delivery.push(A)
        await delivery.command(cancelled, CancelPush(msgid=cancelled.msgid, appkey=cancelled.appkey), kept)
        await gateway.expect((1, kept.msgid))
        assert ("cancelled", 0) in await delivery.facts(cancelled.msgid)


async def test_a_cancel_of_an_unknown_push_or_another_apps_is_ignored(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        msgid = await delivery.send(A)
        await delivery.cancel(msgid, OTHER_APP)
        await delivery.cancel(123)
        gateway.connect((1, A))
        await gateway.expect((1, msgid))
        assert await delivery.facts(msgid) == [("started", 0)]


async def test_an_expired_push_is_finished_and_not_sent_any_more(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        broadcast = await delivery.send(period_s=60)
        listed = await delivery.send(A, period_s=60)
        longer = await delivery.send(A, period_s=61)
        delivery.clock.move(60)
        gateway.connect((1, A))
        await gateway.expect((1, longer))
        await delivery.wait_facts("finished", 3)
        assert await delivery.facts(broadcast) == [("started", 0), ("finished", 0), ("started", 1), ("finished", 1)]
        assert await delivery.facts(listed) == [("started", 0), ("finished", 0)]
        gateway.connect((2, A), (3, B))
        await gateway.expect((1, longer), (2, longer))
        await delivery.advance(10, steps=10)
        await delivery.wait_facts("finished", 4)
        await delivery.advance(10, steps=10)
        assert len([fact for fact in await delivery.push_facts() if fact.WhichOneof("fact") == "finished"]) == 4
    assert (await delivery.verify()).equal


async def test_a_push_that_expires_while_the_process_is_down_is_finished_at_the_start(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running():
        msgid = await delivery.send(A, period_s=60)
    delivery.clock.move(3600)
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.wait_facts("finished", 1)
        gateway.connect((1, A))
        marker = await delivery.send(A)
        await gateway.expect((1, marker))
        assert await delivery.facts(msgid) == [("started", 0), ("finished", 0)]


async def test_a_push_that_expires_before_its_start_is_started_and_finished_but_not_sent(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        late = delivery.push(A, period_s=0)
        await delivery.command(late)
        marker = await delivery.send(A)
        await gateway.expect((1, marker))
        await delivery.advance(1)
        await delivery.wait_facts("finished", 1)
        assert await delivery.facts(late.msgid) == [("started", 0), ("finished", 0)]


async def test_a_full_mailbox_drops_the_oldest_push_and_records_the_reason(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        pushes = [delivery.push(A) for _ in range(MAILBOX_CAP + 2)]
        await delivery.command(*pushes)
        last = await delivery.send(A)
        dropped, kept = pushes[:3], pushes[3:]
        await delivery.expect_outcomes(*(OutcomeRow(push.msgid, A, DROPPED, "mailbox full") for push in dropped))
        gateway.connect((1, A))
        await gateway.expect_backlog(1, A, [push.msgid for push in kept] + [last])
        assert len(await delivery.outcomes(DROPPED)) == 3
    assert (await delivery.verify()).equal


async def test_a_connected_device_may_have_more_unacknowledged_messages(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        pushes = [delivery.push(A) for _ in range(UNACKNOWLEDGED_CAP)]
        await delivery.command(*pushes)
        await gateway.expect(*((1, push.msgid) for push in pushes))
        assert await delivery.outcomes(DROPPED) == []
        await delivery.send(A)
        await delivery.expect_outcomes(OutcomeRow(pushes[0].msgid, A, DROPPED, "mailbox full"))
