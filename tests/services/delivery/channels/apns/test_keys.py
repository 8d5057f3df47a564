"""iOS delivery: signing keys and provider tokens."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from protos.registry.v1.registry_pb2 import ApnsKeyChange, UpdateAppRequest
from services.apns_simulator.keys import public_key
from services.apns_simulator.server import ApnsSimulator
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from testkit.delivery.ios import VALID_TOKENS, IosHarness
from testkit.delivery.records import SENT, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.services import running_services
from testkit.waiting import run_ready_tasks


async def test_a_refused_key_opens_the_circuit_and_single_pushes_probe_it(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        devices = await ios.register(*VALID_TOKENS)
        simulator.refusals = [(403, "InvalidProviderToken")] * 4
        msgid = await ios.send()
        await simulator.wait_requests(1)
        await run_ready_tasks()
        attempted_ms = []
        for attempt in range(1, 5):
            await ios.advance_until(lambda attempt=attempt: simulator.request_count >= attempt)  # type: ignore[misc]
            attempted_ms.append(ios.delivery.clock.now_ms())
            assert simulator.request_count == attempt
        assert [later - earlier for earlier, later in itertools.pairwise(attempted_ms)] == [5000, 10_000, 20_000]
        await ios.advance_until(lambda: len(simulator.tokens) == len(VALID_TOKENS))
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, device, SENT) for device in devices))
        assert simulator.request_count == 4 + len(VALID_TOKENS)


async def test_pushes_wait_until_the_app_has_a_key(delivery: DeliveryHarness, tmp_path: Path) -> None:
    async with without_key(delivery, tmp_path) as (ios, simulator, key):
        (device,) = await ios.register(VALID_TOKENS[0])
        msgid = await ios.send(device)
        await delivery.advance(3, steps=3)
        assert not simulator.received
        await ios.registry.UpdateApp(UpdateAppRequest(appkey=ios.appkey, apns=key))
        await ios.advance_until(lambda: len(simulator.received) == 1)
        await delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))


async def test_a_push_with_a_rate_limit_that_waits_for_a_key_has_one_limiter(
    delivery: DeliveryHarness, tmp_path: Path
) -> None:
    async with without_key(delivery, tmp_path) as (ios, simulator, key):
        devices = await ios.register(*VALID_TOKENS)
        await ios.send(qps=1)
        await delivery.advance(30, steps=300)
        limiters = [task for task in asyncio.all_tasks() if task.get_name() == "rate limit of a push"]
        assert len(limiters) <= 1
        await ios.registry.UpdateApp(UpdateAppRequest(appkey=ios.appkey, apns=key))
        await ios.advance_until(lambda: len(simulator.received) == len(devices))


@asynccontextmanager
async def without_key(
    delivery: DeliveryHarness, directory: Path
) -> AsyncIterator[tuple[IosHarness, ApnsSimulator, ApnsKeyChange]]:
    """Run an app without a key; yield it, the Apple that it pushes to, and a key that this one accepts."""
    key, simulator = pem(), ApnsSimulator(delivery.clock)
    simulator.keys.register(TEAM_ID, KEY_ID, public_key(key))
    async with running_services([simulator]):
        authority = directory / "authority.pem"
        authority.write_text(simulator.authority)
        delivery.settings = msgspec.structs.replace(
            delivery.settings, apns_url=simulator.url, apns_authority=str(authority)
        )
        ios = IosHarness(delivery)
        async with ios.running(has_simulator=False):
            await ios.create_app()
            yield ios, simulator, ApnsKeyChange(pem=key, key_id=KEY_ID, team_id=TEAM_ID)


async def test_an_expired_provider_token_is_renewed_and_the_push_is_resent_at_once(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        simulator.refusals = [(403, "ExpiredProviderToken")]
        began_ms = ios.delivery.clock.now_ms()
        msgid = await ios.send(device)
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))
        assert ios.delivery.clock.now_ms() == began_ms


async def test_a_push_is_delayed_if_the_renewed_provider_token_is_expired_too(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        simulator.refusals = [(403, "ExpiredProviderToken")] * 2
        began_ms = ios.delivery.clock.now_ms()
        msgid = await ios.send(device)
        await ios.advance_until(lambda: simulator.request_count == 3)
        assert ios.delivery.clock.now_ms() > began_ms
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))
