"""Paused apps: nothing of them is sent, and after the resume every device gets what is alive, once."""

from collections import Counter

import pytest

from services.delivery.channels.sockets.fanout import BACKLOG_WINDOW
from testkit.delivery.gateway import GatewayClient
from testkit.delivery.records import OTHER_APP, NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A, B, C = NumberedDevice(0, 0), NumberedDevice(1, 0), NumberedDevice(0, 1)
DEVICES = [NumberedDevice(number % 2, number // 2) for number in range(40)]


def received(gateway: GatewayClient) -> list[tuple[int, int]]:
    return [(message.connection, message.msgid) for message in gateway.received]


async def connected(gateway: GatewayClient, *connections: tuple[int, NumberedDevice], appkey: str = "") -> None:
    gateway.connect(*connections, **({"appkey": appkey} if appkey else {}))
    await run_ready_tasks()


async def test_a_push_accepted_before_the_pause_waits_and_other_apps_do_not(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        await connected(gateway, (1, A), (2, B))
        await connected(gateway, (3, A), appkey=OTHER_APP)
        await delivery.pause()
        broadcast = await delivery.send()
        unicast = await delivery.send(A)
        other = await delivery.send(A, appkey=OTHER_APP)
        await gateway.expect((3, other))
        assert await delivery.facts(broadcast) == [("started", 0), ("started", 1)], "the audience is fixed"
        await run_ready_tasks()
        assert received(gateway) == [(3, other)]
        await delivery.resume()
        await gateway.wait_count(4)
        assert received(gateway)[1:] == [(1, broadcast), (2, broadcast), (1, unicast)]


async def test_a_paced_push_stops_at_once_and_goes_on_at_its_speed(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(*DEVICES)
        await connected(gateway, *((100 + n, device) for n, device in enumerate(DEVICES)))
        msgid = await delivery.send(qps=10)
        await gateway.wait_count(1)
        await delivery.advance(1, steps=50)
        sent = len(gateway.received)
        assert 10 <= sent <= 12
        await delivery.pause()
        await delivery.advance(600, steps=60)
        assert len(gateway.received) == sent, "ten minutes pass, and nothing is sent"
        await connected(gateway, (200, DEVICES[39]))
        await delivery.resume()
        await delivery.advance(1, steps=50)
        assert len(gateway.received) <= sent + 10 + 5, "the lost time is not made up for in a burst"
        await delivery.advance(3, steps=150)
        await gateway.wait_count(40)
        await run_ready_tasks()
        assert Counter(received(gateway)) == Counter({(100 + n, msgid): 1 for n in range(39)} | {(200, msgid): 1})


@pytest.mark.parametrize("qps", [0, 1000])
async def test_a_device_that_connects_during_the_pause_gets_everything_once_and_in_order(
    delivery: DeliveryHarness, qps: int
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        await connected(gateway, (1, A))
        before = await delivery.send(B)
        await delivery.pause()
        during = await delivery.send(qps=qps)
        await connected(gateway, (2, B))
        late = await delivery.send(B)
        assert received(gateway) == []
        await delivery.resume()
        await delivery.advance(1)
        await gateway.wait_count(4)
        after = await delivery.send()
        await gateway.wait_count(6)
        assert Counter(received(gateway)) == Counter(
            dict.fromkeys(((2, before), (1, during), (2, during), (2, late)), 1)
            | {(connection, after): 1 for connection in (1, 2)}
        )
        if not qps:
            assert [msgid for connection, msgid in received(gateway) if connection == 2] == [
                before,
                during,
                late,
                after,
            ]


async def test_a_backlog_stops_in_the_middle_of_its_windows_and_goes_on(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        old = [await delivery.send(A) for _ in range(BACKLOG_WINDOW + 4)]
        await connected(gateway, (1, A))
        await gateway.wait_count(BACKLOG_WINDOW)
        await delivery.pause()
        gateway.acknowledge(*((msgid, A) for msgid in old[:BACKLOG_WINDOW]))
        await run_ready_tasks()
        assert len(gateway.received) == BACKLOG_WINDOW
        await delivery.resume()
        await gateway.expect(*((1, msgid) for msgid in old))
        live = await delivery.send(A)
        await run_ready_tasks()
        gateway.acknowledge(*((msgid, A) for msgid in old[BACKLOG_WINDOW:]))
        await gateway.expect(*((1, msgid) for msgid in [*old, live]))


async def test_what_expires_or_is_cancelled_during_the_pause_is_not_sent(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        await connected(gateway, (1, A))
        await delivery.pause()
        await connected(gateway, (2, B))
        short = await delivery.send(period_s=60)
        cancelled = await delivery.send()
        paced = await delivery.send(qps=10, period_s=60)
        alive = await delivery.send()
        await delivery.advance(61)
        await delivery.wait_facts("finished", 4)
        await delivery.cancel(cancelled)
        await delivery.resume()
        await gateway.expect((1, alive), (2, alive))
        await delivery.advance(1)
        assert {msgid for _, msgid in received(gateway)}.isdisjoint({short, cancelled, paced})


async def test_acknowledgements_count_while_the_app_is_paused(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await connected(gateway, (1, A))
        msgid = await delivery.send(A)
        await gateway.expect((1, msgid))
        await delivery.pause()
        gateway.acknowledge((msgid, A))
        await connected(gateway, (2, A))
        await delivery.resume()
        marker = await delivery.send(A)
        await gateway.expect((1, msgid), (2, marker))


async def test_delivery_that_restarts_while_the_app_is_paused_sends_after_the_resume(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        await connected(gateway, (1, A), (2, B))
        await delivery.pause()
        msgid = await delivery.send()
        assert received(gateway) == []
    async with delivery.running(), delivery.gateway() as gateway:
        await connected(gateway, (1, A), (3, B))
        await run_ready_tasks()
        assert received(gateway) == []
        await delivery.resume()
        await gateway.expect((1, msgid), (3, msgid))
    assert (await delivery.verify()).equal


async def test_a_pause_again_before_everything_is_sent_stops_the_rest(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A, B, C)
        async with delivery.gateway() as gateway:
            await connected(gateway, (1, A), (2, B), (3, C))
            await delivery.pause()
            pushes = [await delivery.send() for _ in range(3)]
            await delivery.resume()
            await delivery.pause()
            await run_ready_tasks()
            before = received(gateway)
            late = await delivery.send()
            await run_ready_tasks()
            assert received(gateway) == before
            await delivery.resume()
            await gateway.wait_count(12)
            assert Counter(received(gateway)) == Counter(
                {(connection, msgid): 1 for connection in (1, 2, 3) for msgid in [*pushes, late]}
            )
