"""iOS delivery: retries after temporary refusals and missing responses."""

import itertools

import pytest

from protos.delivery.v1.delivery_pb2 import CheckAliasesRequest, CheckedDevice
from protos.delivery.v1.delivery_pb2_grpc import AliasesServiceStub
from services.push_simulator.connection import Fault
from testkit.delivery.ios import VALID_TOKENS, IosHarness
from testkit.delivery.records import DROPPED, EXPIRED, FAILED, SENT, OutcomeRow, aliased_audience
from testkit.delivery.scripted_tokens import prefix_of
from testkit.waiting import run_ready_tasks


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (429, "TooManyRequests"),
        (500, "InternalServerError"),
        (503, "Shutdown"),
        (403, "InvalidProviderToken"),
        (400, "IdleTimeout"),
    ],
)
async def test_temporary_refusals_are_retried_with_exponential_backoff(
    ios: IosHarness, status: int, reason: str
) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        simulator.refusals = [(status, reason)] * 3
        msgid = await ios.send(device)
        attempted_ms = []
        for attempt in range(1, 5):
            await ios.advance_until(lambda attempt=attempt: simulator.request_count == attempt)  # type: ignore[misc]
            attempted_ms.append(ios.delivery.clock.now_ms())
            await run_ready_tasks()
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))
        gaps = [later - earlier for earlier, later in itertools.pairwise(attempted_ms)]
        assert gaps[0] >= 1000
        assert gaps[1] >= 2000
        assert gaps[2] >= 4000
        assert await ios.delivery.outcomes(FAILED) == []


async def test_a_push_that_waits_for_a_retry_is_dropped_when_the_device_has_another_alias(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        simulator.refusals = [(503, "Shutdown")] * 2
        msgid = await ios.send(device, audience=aliased_audience(device, aliases=["alice"]))
        by_token = await ios.send(device)
        await simulator.all_refused.wait()
        await ios.delivery.started()
        checked = CheckedDevice(appkey=ios.appkey, partition=device.partition, number=device.number)
        aliases = AliasesServiceStub(ios.delivery.server.channel())
        response = await aliases.CheckAliases(CheckAliasesRequest(devices=[checked]))
        assert [list(each.msgids) for each in response.dropped] == [[msgid]]
        await ios.advance_until(lambda: bool(simulator.received))
        await ios.delivery.expect_outcomes(
            OutcomeRow(by_token, device, SENT), OutcomeRow(msgid, device, DROPPED, "alias changed")
        )
        await ios.delivery.advance(60, steps=60)
        assert [push.headers["apns-collapse-id"] for push in simulator.received] == [str(by_token)]
        assert not ios.in_progress
    assert (await ios.delivery.verify()).equal


async def test_permanent_refusals_are_not_retried(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        simulator.refusals = [(413, "PayloadTooLarge")]
        msgid = await ios.send(device)
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, FAILED, "PayloadTooLarge"))
        await ios.delivery.advance(60, steps=60)
        assert simulator.request_count == 1


async def test_retries_end_when_the_push_expires_or_is_cancelled(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        one, other = await ios.register(*VALID_TOKENS[:2])
        simulator.refusals = [(503, "Shutdown")] * 1000
        expiring = await ios.send(one, period_s=10)
        cancelled = await ios.send(other)
        await ios.advance_until(lambda: simulator.request_count >= 4)
        await ios.delivery.cancel(cancelled, ios.appkey)
        await ios.delivery.advance(10, steps=10)
        await ios.advance_until(lambda: not ios.in_progress)
        requests = simulator.request_count
        simulator.refusals.clear()
        await ios.delivery.advance(1000, steps=100)
        assert (simulator.request_count, simulator.tokens) == (requests, [])
        await ios.delivery.expect_outcomes(OutcomeRow(expiring, one, EXPIRED, "refused until it expired: Shutdown"))
    assert (await ios.delivery.verify()).equal


async def test_too_many_requests_to_one_device_delay_only_that_device(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        limited = prefix_of(429, "TooManyRequests", once=True) + VALID_TOKENS[0][6:]
        one, other = await ios.register(limited, VALID_TOKENS[1])
        first = await ios.send(one)
        await simulator.wait_requests(1)
        second = await ios.send(one)
        third = await ios.send(other)
        await ios.delivery.expect_outcomes(OutcomeRow(third, other, SENT))
        await run_ready_tasks()
        assert simulator.request_count == 2
        await ios.advance_until(lambda: simulator.request_count == 4)
        await ios.delivery.expect_outcomes(
            OutcomeRow(first, one, SENT), OutcomeRow(second, one, SENT), OutcomeRow(third, other, SENT)
        )


async def test_an_unknown_outcome_is_recorded_as_failed_when_the_push_expires(ios: IosHarness) -> None:
    async with ios.running():
        (device,) = await ios.register(prefix_of(0, fault=Fault.RESET) + VALID_TOKENS[0][4:])
        msgid = await ios.send(device, period_s=2000)
        await ios.wait_started()
        await ios.advance_until(lambda: not ios.in_progress)
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, FAILED, "unknown: reset: INTERNAL_ERROR"))


async def test_a_missing_response_delays_no_other_push(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        await ios.register(VALID_TOKENS[0])
        await ios.register(prefix_of(0, fault=Fault.SILENCE) + VALID_TOKENS[0][4:])
        await ios.send()
        others = await ios.register(*VALID_TOKENS[1:])
        await simulator.wait_accepted(1)
        msgid = await ios.send(*others)
        await ios.delivery.expect_outcomes(
            *(OutcomeRow(msgid, device, SENT) for device in others),
            OutcomeRow(msgid - 1, await ios.device(VALID_TOKENS[0]), SENT),
        )
