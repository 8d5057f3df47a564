"""Pushes whose audience targeting does not resolve: they wait, end as failed, or are cancelled, and delay no other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import CancelPush, SendPush
from services.delivery import starting
from services.delivery.resolving import ORDER_WAIT_MS
from services.delivery.waiting_pushes import ROUND
from services.errors import BusyError
from testkit.delivery.faulty_targeting import FaultyTargeting, put_before
from testkit.delivery.gateway import GatewayClient
from testkit.delivery.records import APP, OTHER_APP, NumberedDevice, stag_audience
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks, until_holds

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)
GONE = "/protos.targeting.v1.TargetingService/Resolve is not served in this process"


def stag_push(delivery: DeliveryHarness, stag: str, **changes: object) -> SendPush:
    return delivery.push(audience=stag_audience(stag), **changes)


async def reasons(delivery: DeliveryHarness, msgid: int) -> list[tuple[int, str]]:
    """Return the partitions in which the push failed, with the reasons."""
    facts = [fact for fact in await delivery.push_facts() if fact.msgid == msgid and fact.HasField("failed")]
    return [(fact.partition, fact.failed.reason) for fact in facts]


async def advance_with_attempts(delivery: DeliveryHarness, targeting: FaultyTargeting, seconds: int) -> None:
    """Advance the clock second by second; the attempts that begin meanwhile end before it goes on."""
    for _ in range(seconds):
        await delivery.advance(1)
        await targeting.answered()


@contextlib.asynccontextmanager
async def without_targeting(delivery: DeliveryHarness) -> AsyncIterator[GatewayClient]:
    """Register A, run delivery again with a targeting that does not answer, and connect A to a gateway."""
    async with delivery.running():
        await delivery.register(A)
    async with delivery.running(hide_targeting=True), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        yield gateway


async def test_a_push_that_waits_for_targeting_delays_no_unicast_no_cancel_and_no_start(
    delivery: DeliveryHarness,
) -> None:
    async with without_targeting(delivery) as gateway:
        waiting, unicast = delivery.push(), delivery.push(A)
        await delivery.command(waiting, unicast)
        await gateway.expect((1, unicast.msgid))
        await delivery.cancel(unicast.msgid)
        assert await delivery.facts(unicast.msgid) == [("started", 0), ("cancelled", 0)]
    async with delivery.running(hide_targeting=True), delivery.gateway() as gateway:
        gateway.connect((2, A))
        later = await delivery.send(A)
        await gateway.expect((2, later))
        delivery.show_targeting()
        await delivery.advance(1)
        await gateway.expect((2, later), (2, waiting.msgid))
        assert await delivery.facts(waiting.msgid) == [("started", 0), ("started", 1)]
    assert (await delivery.verify()).equal


async def test_a_push_that_is_stuck_is_cancelled_at_once(delivery: DeliveryHarness) -> None:
    async with delivery.running(hide_targeting=True), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        stuck = await delivery.send()
        (cancelled_at,) = await delivery.command(CancelPush(msgid=stuck, appkey=APP))
        request = GetBroadcastRequest(msgid=stuck, appkey=APP)
        assert (await DeliveryServiceStub(delivery.server.channel()).GetBroadcast(request)).cancelled
        assert await delivery.facts(stuck) == [("cancelled", 0), ("cancelled", 1)]
        assert {fact.meta.cause.offset for fact in await delivery.push_facts()} == {cancelled_at}
        delivery.show_targeting()
        await delivery.register(A)
        await delivery.advance(20, steps=20)
        marker = await delivery.send(A)
        await gateway.expect((1, marker))
    assert (await delivery.verify()).equal


async def test_an_unavailable_targeting_is_never_counted_but_the_time_to_live_ends_the_wait(
    delivery: DeliveryHarness,
) -> None:
    async with without_targeting(delivery) as gateway:
        short, long = delivery.push(period_s=60), delivery.push()
        await delivery.command(short, long)
        await delivery.advance(59, steps=59)
        assert await delivery.push_facts() == []
        await delivery.advance(2, steps=2)
        await delivery.wait_facts("failed", 2)
        reason = f"its time to live was over before targeting resolved its audience: {GONE}"
        assert await reasons(delivery, short.msgid) == [(0, reason), (1, reason)]
        await delivery.advance(1800, steps=180)
        delivery.show_targeting()
        await delivery.advance(10)
        await gateway.expect((1, long.msgid))
    assert (await delivery.verify()).equal


async def test_a_refused_audience_fails_at_once_with_its_reason(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, stag="x")
        gateway.connect((1, A))
        await run_ready_tasks()
        refused = stag_push(delivery, "x")
        refused.audience.filter.activity.add(days=12345)
        (offset,) = await delivery.command(refused)
        reason = "filter.activity: days is 12345, but must be one of (1, 7, 30, 90)"
        assert await reasons(delivery, refused.msgid) == [(0, reason), (1, reason)]
        assert {fact.meta.cause.offset for fact in await delivery.push_facts()} == {offset}
        await delivery.command(refused)
        marker = await delivery.send(A)
        await gateway.expect((1, marker))
        assert len(await reasons(delivery, refused.msgid)) == 2
    assert (await delivery.verify()).equal
    async with delivery.running():
        await delivery.command(refused)
        assert len(await reasons(delivery, refused.msgid)) == 2


async def test_a_slow_audience_delays_later_pushes_of_its_app_for_a_bounded_time(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        await delivery.register(A, appkey=OTHER_APP)
        gateway.connect((1, A))
        gateway.connect((2, A), appkey=OTHER_APP)
        await run_ready_tasks()
        targeting = put_before(delivery.targeting_server)
        targeting.hanging.add("slow")
        slow, unicast = stag_push(delivery, "slow"), delivery.push(A)
        other = delivery.push(appkey=OTHER_APP)
        (*_, last) = await delivery.command(slow, unicast, other, wait_applied=False)
        await delivery.applied(last)
        await gateway.expect((2, other.msgid))
        await delivery.advance(ORDER_WAIT_MS / 1000)
        await gateway.expect((2, other.msgid), (1, unicast.msgid))
        later, broadcast = delivery.push(A), delivery.push()
        await delivery.command(later)
        await delivery.command(broadcast, wait_applied=False)
        await delivery.advance(1)
        await gateway.expect((2, other.msgid), (1, unicast.msgid), (1, later.msgid), (1, broadcast.msgid))
        assert targeting.given_up == 0
        await delivery.cancel(slow.msgid)
        assert await delivery.facts(slow.msgid) == [("cancelled", 0), ("cancelled", 1)]
        await run_ready_tasks()
        assert targeting.given_up == 1


async def test_many_pushes_that_wait_cost_one_attempt_at_a_time(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, stag="x")
        gateway.connect((1, A))
        await run_ready_tasks()
        targeting = put_before(delivery.targeting_server)
        targeting.faults["x"] = lambda: BusyError("full")
        pushes = [stag_push(delivery, "x") for _ in range(200)]
        await delivery.command(*pushes)
        before = targeting.requests["x"] + targeting.probes
        await advance_with_attempts(delivery, targeting, 100)
        assert 5 < targeting.requests["x"] + targeting.probes - before < 40
        targeting.faults.clear()
        await delivery.advance(10)
        await gateway.wait_count(len(pushes))
        received = sorted((message.connection, message.msgid) for message in gateway.received)
        assert received == [(1, push.msgid) for push in pushes]  # pushes that were held up start in any order


async def test_a_stopped_delivery_gives_up_its_calls(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        targeting = put_before(delivery.targeting_server)
        targeting.hanging.add("slow")
        await delivery.command(stag_push(delivery, "slow"), wait_applied=False)
        async with asyncio.timeout(10):
            while not targeting.requests["slow"]:
                await asyncio.sleep(0)
    await run_ready_tasks()
    assert targeting.given_up == 1


async def test_another_apps_push_waits_for_one_round_of_many_pushes(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        gateway.connect((2, A), appkey=OTHER_APP)
        await run_ready_tasks()
        many = [delivery.push(A) for _ in range(900)]
        quiet = delivery.push(A, appkey=OTHER_APP)
        await delivery.command(*many, quiet)
        await gateway.wait_count(len(many) + 1)
        order = [message.msgid for message in gateway.received]
        assert [msgid for msgid in order if msgid != quiet.msgid] == [push.msgid for push in many]
        assert order.index(quiet.msgid) < 200 + ROUND / 100


async def test_a_push_larger_than_a_turn_starts_in_parts_and_is_sent_once_to_each_device(
    delivery: DeliveryHarness,
) -> None:
    devices = [NumberedDevice(number % 2, number) for number in range(120)]
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect(*enumerate(devices, 1))
        await run_ready_tasks()
        push, marker = delivery.push(*devices), delivery.push(A)
        await delivery.command(push, marker)
        await gateway.wait_count(len(devices) + 1)
        of_push = [message.connection for message in gateway.received if message.msgid == push.msgid]
        assert sorted(of_push) == list(range(1, len(devices) + 1))
        assert gateway.received[-1].msgid == marker.msgid
        assert delivery.starter()._waiting_bytes.total == 0
    assert (await delivery.verify()).equal


async def test_an_audience_too_large_for_a_record_fails_its_push_alone(
    delivery: DeliveryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "MAX_RECORD_BYTES", 1200)
    everyone = [NumberedDevice(0, number) for number in range(0, 200, 2)]
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await delivery.register(*everyone)
        large, small = delivery.push(), delivery.push(A)
        await delivery.command(large, small)
        await gateway.expect((1, small.msgid))
        assert [partition for partition, reason in await reasons(delivery, large.msgid) if "too large" in reason] == [
            0,
            1,
        ]
    assert (await delivery.verify()).equal


async def test_the_time_from_accepted_to_sent_is_measured_once_for_each_push(delivery: DeliveryHarness) -> None:
    """One that is sent at once, and one that waits for targeting."""

    def measured() -> tuple[float, float]:
        name = "carillon_delivery_accepted_to_sent_seconds"
        within = REGISTRY.get_sample_value(f"{name}_bucket", {"le": "1.0"}) or 0
        return within, REGISTRY.get_sample_value(f"{name}_count") or 0

    before = measured()
    async with without_targeting(delivery) as gateway:
        waiting, unicast = delivery.push(), delivery.push(A)
        await delivery.command(waiting, unicast)
        await gateway.expect((1, unicast.msgid))
        await until_holds(lambda: measured() == (before[0] + 1, before[1] + 1))
        await delivery.advance(5, steps=5)
        delivery.show_targeting()
        await delivery.advance(30, steps=30)
        await gateway.expect((1, unicast.msgid), (1, waiting.msgid))
        await until_holds(lambda: measured() == (before[0] + 1, before[1] + 2))
