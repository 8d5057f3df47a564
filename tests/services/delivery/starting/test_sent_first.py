"""Pushes to listed devices are sent before their start is in the log; all others afterwards."""

import asyncio
from typing import Any

import pytest

from protos.push.v1.push_pb2 import Audience, Everyone
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.delivery.event_writer import MAX_UNWRITTEN
from services.domain.topics import PUSHES
from services.log.port import NewRecord
from testkit.delivery.records import RECEIVED, NumberedDevice, OutcomeRow, stag_audience
from testkit.delivery.role import DeliveryHarness
from testkit.faults.crashing_log import KilledError
from testkit.waiting import run_ready_tasks

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)


def is_start(new_record: NewRecord) -> bool:
    return new_record.topic == PUSHES.name


async def sent_before_a_kill(delivery: DeliveryHarness) -> int:
    """Send a push to A, connected, by a process that is killed when it writes the start; return the message id."""
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        delivery.log.kill_at = is_start
        push = delivery.push(A)
        await delivery.command(push, wait_applied=False)
        await gateway.expect((1, push.msgid))
        await delivery.log.died.wait()
    assert not await delivery.start_counts()
    return push.msgid


async def test_a_push_that_was_sent_before_a_kill_is_started_and_sent_again(delivery: DeliveryHarness) -> None:
    msgid = await sent_before_a_kill(delivery)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((2, A))
        await gateway.expect((2, msgid))
        assert await delivery.start_counts() == {(msgid, 0): 1}
    assert (await delivery.verify()).equal


async def test_a_push_that_was_sent_before_a_kill_and_acknowledged_after_it_is_not_sent_again(
    delivery: DeliveryHarness,
) -> None:
    msgid = await sent_before_a_kill(delivery)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.acknowledge((msgid, A))
        gateway.connect((2, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))
        marker = await delivery.send(A)
        await gateway.expect((2, marker))
    assert (await delivery.verify()).equal


async def test_a_gateways_reports_wait_until_unfinished_pushes_have_started_again(delivery: DeliveryHarness) -> None:
    msgid = await sent_before_a_kill(delivery)
    async with delivery.running(hide_targeting=True):
        starter = delivery.starter()
        assert starter.has_resumed.is_set()
        starter.has_resumed.clear()
        async with delivery.gateway() as gateway:
            gateway.acknowledge((msgid, A))
            await run_ready_tasks()
            assert not delivery.recorder().has_unwritten_final(A.partition, msgid, A.number)
            starter.has_resumed.set()
            await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))


async def test_a_snapshot_waits_for_the_starts_that_it_holds(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        before = delivery.read_snapshot()
        delivery.log.kill_at = is_start
        await delivery.command(delivery.push(A), wait_applied=False)
        async with asyncio.timeout(10):
            while not delivery.events().unwritten:
                await asyncio.sleep(0)
        with pytest.raises(KilledError):
            await delivery.snapshots().save()
        assert delivery.read_snapshot() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"audience": Audience(everyone=Everyone())},
        {"audience": stag_audience("news")},
        {"qps": 5},
        {"platform": PLATFORM_IOS},
    ],
    ids=["everyone", "filter", "speed", "ios"],
)
async def test_the_start_of_any_other_push_is_in_the_log_first(
    delivery: DeliveryHarness, changes: dict[str, Any]
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, stag="news")
        gateway.connect((1, A))
        await run_ready_tasks()
        delivery.log.kill_at = is_start
        await delivery.command(delivery.push(A, **changes), wait_applied=False)
        await delivery.log.died.wait()
        assert (gateway.received, delivery.events().unwritten) == ([], 0)


async def test_starts_do_not_pile_up_while_the_log_takes_none(delivery: DeliveryHarness) -> None:
    held = asyncio.Event()
    append = delivery.log.append

    async def append_held(new_records: Any) -> list[int]:
        if any(map(is_start, new_records)):
            await held.wait()
        return await append(new_records)

    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        delivery.log.append = append_held  # type: ignore[method-assign]
        pushes = [delivery.push(B) for _ in range(MAX_UNWRITTEN)]
        await delivery.command(*pushes, delivery.push(A), wait_applied=False)
        async with asyncio.timeout(30):
            while delivery.events().unwritten < MAX_UNWRITTEN:
                await asyncio.sleep(0)
        await run_ready_tasks()
        assert (gateway.received, delivery.events().unwritten) == ([], MAX_UNWRITTEN)
        held.set()
        await gateway.wait_count(1)
    assert (await delivery.verify()).equal
