"""How pushes end: cancelled, expired, or pushed out of a full mailbox; and how they go out at a speed."""

from protos.push.v1.push_pb2 import CancelPush
from services.delivery.android.rate_limiter import CATCH_UP_MS
from services.delivery.decide import MAILBOX_CAP, UNACKNOWLEDGED_CAP
from testkit.delivery_records import DROPPED, OTHER_APP, RECEIVED, SENT, NumberedDevice, OutcomeRow
from testkit.delivery_role import DeliveryHarness
from testkit.event_loop import run_ready_tasks

A, B, C = NumberedDevice(0, 0), NumberedDevice(1, 0), NumberedDevice(0, 1)
CROWD = [NumberedDevice(number % 2, number // 2) for number in range(40)]


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


async def test_a_paced_push_is_sent_at_its_speed(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD)))
        await run_ready_tasks()
        await delivery.send(qps=10)
        for seconds in range(4):
            await gateway.wait_count(1 + 10 * seconds)
            await run_ready_tasks()
            assert len(gateway.received) == 1 + 10 * seconds
            await delivery.advance(1, steps=50)
        await gateway.wait_until(lambda: len(gateway.received) == 40)
        assert len(set(gateway.received)) == 40


async def test_lost_time_of_a_paced_push_is_not_made_up_for_in_a_burst(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD)))
        await run_ready_tasks()
        await delivery.send(qps=10)
        await gateway.wait_count(1)
        await delivery.advance(2)
        await delivery.advance(0)
        assert len(gateway.received) == 1 + 10 * CATCH_UP_MS // 1000 + 1
        await delivery.advance(1, steps=50)
        assert len(gateway.received) == 1 + 10 * CATCH_UP_MS // 1000 + 1 + 10


async def test_a_device_that_connects_during_a_paced_push_is_queued_and_sent_it_once(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD[:10])))
        await run_ready_tasks()
        msgid = await delivery.send(qps=1)
        await gateway.wait_until(lambda: len(gateway.received) == 1)
        gateway.connect((200, CROWD[20]), (109, CROWD[9]), (209, CROWD[9]))
        await run_ready_tasks()
        assert len(gateway.received) == 1
        await delivery.advance(9, steps=90)
        await gateway.wait_until(lambda: len(gateway.received) == 10)
        await delivery.advance(60, steps=60)
        assert {got.connection for got in gateway.received} == {*range(100, 109), 200, 209}
        assert len(gateway.received) == 11
        assert {got.msgid for got in gateway.received} == {msgid}


async def test_a_reconnect_storm_does_not_speed_up_a_paced_push(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*CROWD)
        await delivery.send(qps=10)
        for n, at in enumerate(CROWD):
            gateway.connect((100 + n, at))
            await run_ready_tasks()
        assert len(gateway.received) == 1
        await delivery.advance(2, steps=100)
        assert len(gateway.received) == 21


async def test_the_speed_of_a_push_holds_over_all_partitions_and_gateways(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as one, delivery.gateway() as other:
        crowd = [NumberedDevice(number % 2, number // 2) for number in range(400)]
        await delivery.register(*crowd)
        one.connect(*((1000 + n, at) for n, at in enumerate(crowd[:300])))
        other.connect(*((2000 + n, at) for n, at in enumerate(crowd[300:])))
        await run_ready_tasks()
        await delivery.send(qps=30)
        for _ in range(3):
            before = len(one.received) + len(other.received)
            await delivery.advance(4, steps=133)
            assert len(one.received) + len(other.received) - before in (119, 120, 121)


async def test_a_slow_broadcast_delays_no_unicast_and_no_other_push(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD)))
        await run_ready_tasks()
        slow = await delivery.send(qps=1)
        await gateway.wait_count(1)
        unicast = await delivery.send(CROWD[39])
        fast = await delivery.send()
        await gateway.wait_count(2 + len(CROWD))
        assert [got.msgid for got in gateway.received[:2]] == [slow, unicast]
        assert {got.msgid for got in gateway.received[2:]} == {fast}


async def test_disconnected_devices_use_nothing_of_a_paced_pushs_speed(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*CROWD)
        online = [CROWD[0], CROWD[4], CROWD[8], CROWD[19], CROWD[38]]
        gateway.connect(*((100 + n, at) for n, at in enumerate(online)))
        await run_ready_tasks()
        await delivery.send(qps=1)
        await gateway.wait_count(1)
        gateway.request(disconnected=[101, 102])
        await run_ready_tasks()
        await delivery.advance(2, steps=10)
        await gateway.wait_count(3)
        assert sorted(got.connection for got in gateway.received) == [100, 103, 104]


async def test_a_paced_push_stops_when_it_is_cancelled_or_expires(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD)))
        await run_ready_tasks()
        cancelled = await delivery.send(qps=1)
        expiring = await delivery.send(qps=1, period_s=5)
        await delivery.advance(3, steps=15)
        await gateway.wait_until(lambda: len(gateway.received) == 8)
        await delivery.cancel(cancelled)
        await delivery.advance(60, steps=60)
        marker = await delivery.send(A)
        await gateway.wait_until(lambda: gateway.received[-1].msgid == marker)
        assert len([got for got in gateway.received if got.msgid == cancelled]) == 4
        assert len([got for got in gateway.received if got.msgid == expiring]) == 5


async def test_a_paced_token_list_is_sent_at_its_speed_with_the_ids_of_its_entries(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await run_ready_tasks()
        first = await delivery.send(A, B, id_count=2, qps=1)
        await gateway.wait_until(lambda: len(gateway.received) == 1)
        await delivery.advance(1)
        await gateway.expect((1, first), (2, first + 1))
        await delivery.expect_outcomes(OutcomeRow(first, A, SENT), OutcomeRow(first + 1, B, SENT))
        gateway.acknowledge((first, A), (first + 1, B))
        await delivery.expect_outcomes(OutcomeRow(first, A, RECEIVED), OutcomeRow(first + 1, B, RECEIVED))


async def test_the_unsent_rest_of_a_paced_push_is_sent_after_a_restart(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*CROWD)
        gateway.connect((1, CROWD[0]), (2, CROWD[2]))
        await run_ready_tasks()
        msgid = await delivery.send(qps=1)
        await gateway.expect((1, msgid))
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((3, CROWD[2]))
        await gateway.expect((3, msgid))
