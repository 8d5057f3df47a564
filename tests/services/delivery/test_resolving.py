"""Failed attempts to resolve an audience: some are repeated, and some count towards the limit."""

import asyncio

import pytest

from services.delivery.resolving import MAX_FAILURES
from services.errors import BusyError, CarillonError, DeadlineError, PermissionDeniedError, UnavailableError
from testkit.delivery.faulty_targeting import put_before
from testkit.delivery.records import NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.delivery.starting.test_held_up import advance_with_attempts, reasons, stag_push, without_targeting

A = NumberedDevice(0, 0)


async def test_a_push_whose_time_is_over_as_its_attempt_begins_holds_up_no_other(delivery: DeliveryHarness) -> None:
    async with without_targeting(delivery) as gateway:
        await delivery.command(delivery.push(period_s=60), long := delivery.push())
        await delivery.advance(61)
        delivery.show_targeting()
        await delivery.advance(10)
        await gateway.expect((1, long.msgid))


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_push_that_fails_again_and_again_ends_as_failed_and_stops_no_other(
    delivery: DeliveryHarness, crashes: bool
) -> None:
    """Each attempt fails with an error of targeting, or because targeting crashes at each request after a probe."""
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, stag="good")
        gateway.connect((1, A))
        await run_ready_tasks()
        targeting = put_before(delivery.targeting_server)
        targeting.crashing = {"bad"} if crashes else set()
        targeting.faults["bad"] = lambda: CarillonError("bug")
        bad, good, unicast = stag_push(delivery, "bad"), stag_push(delivery, "good"), delivery.push(A)
        await delivery.command(bad, good, unicast)
        await delivery.advance(0.5)
        await gateway.wait_until(lambda: {m.msgid for m in gateway.received} == {good.msgid, unicast.msgid})
        attempts = MAX_FAILURES + crashes  # the first attempt may have met a targeting that was down
        failing = asyncio.create_task(delivery.wait_facts("failed", 2))
        while not failing.done():
            await advance_with_attempts(delivery, targeting, 1)
        await failing
        error = "Socket closed" if crashes else "bug"
        assert targeting.requests["bad"] == attempts
        expected = f"{MAX_FAILURES} attempts failed, the last one with: {error}"
        assert await reasons(delivery, bad.msgid) == [(0, expected), (1, expected)]
    assert (await delivery.verify()).equal


@pytest.mark.parametrize(
    "error",
    [BusyError("full"), DeadlineError("late"), PermissionDeniedError("no role"), UnavailableError("Connection reset")],
)
async def test_overload_and_lost_connections_are_not_counted(delivery: DeliveryHarness, error: CarillonError) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, stag="good")
        gateway.connect((1, A))
        await run_ready_tasks()
        targeting = put_before(delivery.targeting_server)
        targeting.faults["good"] = lambda: error
        await delivery.command(push := stag_push(delivery, "good"))
        await until_holds(lambda: targeting.requests["good"] > 0)
        await advance_with_attempts(delivery, targeting, 300)
        assert MAX_FAILURES < targeting.requests["good"] < 50
        del targeting.faults["good"]
        await delivery.advance(10)
        await gateway.expect((1, push.msgid))
