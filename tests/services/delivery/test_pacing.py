"""Pushes with a speed (`qps`): their rate over time, partitions and gateways, and their end."""

from services.delivery.limits import CATCH_UP_MS
from testkit.delivery.records import RECEIVED, SENT, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)
DEVICES = [NumberedDevice(number % 2, number // 2) for number in range(40)]


async def test_a_paced_push_is_sent_at_its_speed(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*DEVICES)
        gateway.connect(*((100 + n, device) for n, device in enumerate(DEVICES)))
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
        await delivery.register(*DEVICES)
        gateway.connect(*((100 + n, device) for n, device in enumerate(DEVICES)))
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
        await delivery.register(*DEVICES)
        gateway.connect(*((100 + n, device) for n, device in enumerate(DEVICES[:10])))
        await run_ready_tasks()
        msgid = await delivery.send(qps=1)
        await gateway.wait_until(lambda: len(gateway.received) == 1)
        gateway.connect((200, DEVICES[20]), (109, DEVICES[9]), (209, DEVICES[9]))
        await run_ready_tasks()
        assert len(gateway.received) == 1
        await delivery.advance(9, steps=90)
        await gateway.wait_until(lambda: len(gateway.received) == 10)
        await delivery.advance(60, steps=60)
        assert {message.connection for message in gateway.received} == {*range(100, 109), 200, 209}
        assert len(gateway.received) == 11
        assert {message.msgid for message in gateway.received} == {msgid}


async def test_a_reconnect_storm_does_not_speed_up_a_paced_push(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*DEVICES)
        await delivery.send(qps=10)
        for n, at in enumerate(DEVICES):
            gateway.connect((100 + n, at))
            await run_ready_tasks()
        assert len(gateway.received) == 1
        await delivery.advance(2, steps=100)
        assert len(gateway.received) == 21


async def test_the_speed_of_a_push_holds_over_all_partitions_and_gateways(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as one, delivery.gateway() as other:
        devices = [NumberedDevice(number % 2, number // 2) for number in range(400)]
        await delivery.register(*devices)
        one.connect(*((1000 + n, device) for n, device in enumerate(devices[:300])))
        other.connect(*((2000 + n, device) for n, device in enumerate(devices[300:])))
        await run_ready_tasks()
        await delivery.send(qps=30)
        for _ in range(3):
            before = len(one.received) + len(other.received)
            await delivery.advance(4, steps=133)
            assert len(one.received) + len(other.received) - before in (119, 120, 121)


async def test_a_slow_broadcast_delays_no_unicast_and_no_other_push(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*DEVICES)
        gateway.connect(*((100 + n, device) for n, device in enumerate(DEVICES)))
        await run_ready_tasks()
        slow = await delivery.send(qps=1)
        await gateway.wait_count(1)
        unicast = await delivery.send(DEVICES[39])
        fast = await delivery.send()
        await gateway.wait_count(2 + len(DEVICES))
        assert [message.msgid for message in gateway.received[:2]] == [slow, unicast]
        assert {message.msgid for message in gateway.received[2:]} == {fast}


async def test_disconnected_devices_use_nothing_of_a_paced_pushs_speed(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*DEVICES)
        online = [DEVICES[0], DEVICES[4], DEVICES[8], DEVICES[19], DEVICES[38]]
        gateway.connect(*((100 + n, device) for n, device in enumerate(online)))
        await run_ready_tasks()
        await delivery.send(qps=1)
        await gateway.wait_count(1)
        gateway.request(disconnected=[101, 102])
        await run_ready_tasks()
        await delivery.advance(2, steps=10)
        await gateway.wait_count(3)
        assert sorted(message.connection for message in gateway.received) == [100, 103, 104]


async def test_a_paced_push_stops_when_it_is_cancelled_or_expires(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*DEVICES)
        gateway.connect(*((100 + n, device) for n, device in enumerate(DEVICES)))
        await run_ready_tasks()
        cancelled = await delivery.send(qps=1)
        expiring = await delivery.send(qps=1, period_s=5)
        await delivery.advance(3, steps=15)
        await gateway.wait_until(lambda: len(gateway.received) == 8)
        await delivery.cancel(cancelled)
        await delivery.advance(60, steps=60)
        marker = await delivery.send(A)
        await gateway.wait_until(lambda: gateway.received[-1].msgid == marker)
        assert len([message for message in gateway.received if message.msgid == cancelled]) == 4
        assert len([message for message in gateway.received if message.msgid == expiring]) == 5


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
        await delivery.register(*DEVICES)
        gateway.connect((1, DEVICES[0]), (2, DEVICES[2]))
        await run_ready_tasks()
        msgid = await delivery.send(qps=1)
        await gateway.expect((1, msgid))
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((3, DEVICES[2]))
        await gateway.expect((3, msgid))
