"""iOS delivery: device tokens that Apple refuses."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import (
    GetAppleStateRequest,
    GetAppleStateResponse,
    MostlyBadTokens,
    RefusedKey,
)
from protos.delivery.v1.delivery_pb2_grpc import AppleStateServiceStub
from protos.registry.v1.apps_pb2 import CHANNEL_APNS, CHANNEL_WEBPUSH
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from services.apns_simulator.server import ApnsSimulator
from services.delivery import main as delivery_main
from services.delivery.channels.apns.sender import ApnsEndpoint, CredentialsSource
from services.domain.apns_credentials import Environment
from services.domain.topics import DEVICE_COMMANDS
from services.log.port import Partition
from services.process.metrics import APNS_MOSTLY_BAD, APNS_STOPPED
from testkit.delivery.ios import MALFORMED_TOKEN, UNREGISTERED_TOKEN, VALID_TOKENS, IosHarness
from testkit.delivery.records import FAILED, SENT, OutcomeRow
from testkit.delivery.scripted_tokens import prefix_of
from testkit.services import TIMEOUT_S, running_services
from testkit.waiting import run_ready_tasks


async def test_invalid_tokens_are_recorded_as_failed_and_removed_from_the_registry(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        dead, good = await ios.register(UNREGISTERED_TOKEN, VALID_TOKENS[0])
        ios.delivery.clock.move(5)
        msgid = await ios.send()
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, dead, FAILED, "Unregistered"))
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, good, SENT))
        await ios.wait_commands_applied()
        again = await ios.send(dead)
        await ios.delivery.expect_outcomes(
            OutcomeRow(msgid, dead, FAILED, "Unregistered"),
            OutcomeRow(again, dead, FAILED, "removed"),
        )
        assert simulator.request_count == 2


async def test_a_token_that_is_called_bad_again_after_a_day_is_removed(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        bad, good, alive = await ios.register(MALFORMED_TOKEN, *VALID_TOKENS[:2])
        simulator.unknown_tokens = {VALID_TOKENS[1]}
        ios.delivery.clock.move(3 * 3600)
        failed: list[OutcomeRow] = []
        accepted: list[OutcomeRow] = []
        for hours in (23, 2, 0):
            sent = [await ios.send(good) for _ in range(3)]  # Apple accepts most
            await ios.delivery.expect_outcomes(*accepted, *(OutcomeRow(msgid, good, SENT) for msgid in sent))
            sent.append(await ios.send())
            failed += [OutcomeRow(sent[-1], device, FAILED, "BadDeviceToken") for device in (bad, alive)]
            accepted += [OutcomeRow(msgid, good, SENT) for msgid in sent]
            await ios.delivery.expect_outcomes(*failed)
            await ios.delivery.expect_outcomes(*accepted)
            await ios.wait_commands_applied()
            ios.delivery.clock.move(hours * 3600)
            await ios.register(VALID_TOKENS[1])  # its app is opened
        last = await ios.send(bad, alive)
        failed += [OutcomeRow(last, bad, FAILED, "removed"), OutcomeRow(last, alive, FAILED, "BadDeviceToken")]
        await ios.delivery.expect_outcomes(*failed)


async def test_a_wrong_environment_removes_no_device_and_is_said(
    ios: IosHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ios.running() as simulator:
        devices = await ios.register(*VALID_TOKENS)
        simulator.unknown_tokens = set(VALID_TOKENS)
        failed: list[OutcomeRow] = []
        for _ in range(3):
            msgid = await ios.send()
            failed += [OutcomeRow(msgid, device, FAILED, "BadDeviceToken") for device in devices]
            await ios.delivery.expect_outcomes(*failed)
            ios.delivery.clock.move(25 * 3600)
        simulator.unknown_tokens = set()
        msgid = await ios.send()
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, device, SENT) for device in devices))
    assert "Apple calls most tokens of the app bad; its devices stay registered" in capsys.readouterr().out


async def test_what_apple_answered_is_known_with_and_without_a_snapshot(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        bad, *good = await ios.register(MALFORMED_TOKEN, *VALID_TOKENS)
        ios.delivery.clock.move(3 * 3600)
        first = await ios.send()
        await ios.delivery.expect_outcomes(
            OutcomeRow(first, bad, FAILED, "BadDeviceToken"), *(OutcomeRow(first, device, SENT) for device in good)
        )
    for _ in range(2):
        ios.delivery.clock.move(12 * 3600)
        async with ios.running():  # from the snapshot of the stop
            known = list(ios.delivery.store().state.bad_tokens.dump())
        ios.delivery.store().file.path.unlink()
        async with ios.running():  # from the log
            assert list(ios.delivery.store().state.bad_tokens.dump()) == known != []
    async with ios.running():
        again = await ios.send(bad)
        await ios.delivery.expect_outcomes(
            OutcomeRow(first, bad, FAILED, "BadDeviceToken"),
            OutcomeRow(again, bad, FAILED, "BadDeviceToken"),
            *(OutcomeRow(first, device, SENT) for device in good),
        )
        await ios.wait_commands_applied()
        last = await ios.send(bad)
        async with asyncio.timeout(TIMEOUT_S):
            while OutcomeRow(last, bad, FAILED, "removed") not in await ios.delivery.outcomes():
                await asyncio.sleep(0)
    assert len(simulator.received) == len(VALID_TOKENS)


async def test_an_apps_state_at_apple_is_told_and_counted_while_it_holds(ios: IosHarness) -> None:
    def gauges() -> tuple[float, float]:
        (bad,), (stopped,) = APNS_MOSTLY_BAD.collect(), APNS_STOPPED.collect()
        return bad.samples[0].value, stopped.samples[0].value

    async def state() -> GetAppleStateResponse:
        stub = AppleStateServiceStub(ios.delivery.server.channel())
        return await stub.GetAppleState(GetAppleStateRequest(appkey=ios.appkey))

    bad, stopped = gauges()
    simulators = [CHANNEL_APNS, CHANNEL_WEBPUSH]
    async with ios.running() as simulator:
        devices = await ios.register(*VALID_TOKENS)
        assert await state() == GetAppleStateResponse(simulators=simulators)
        simulator.unknown_tokens = set(VALID_TOKENS)
        msgid, sent_ms = await ios.send(), ios.delivery.clock.now_ms()
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, each, FAILED, "BadDeviceToken") for each in devices))
        tokens = MostlyBadTokens(since_ms=sent_ms, last_ms=sent_ms, refused=len(devices), reason="BadDeviceToken")
        async with asyncio.timeout(TIMEOUT_S):
            while (await state()).bad_tokens != tokens:
                await asyncio.sleep(0)
        assert gauges() == (bad + 1, stopped)
        simulator.unknown_tokens = set()
        simulator.refusals = [(403, "InvalidProviderToken")]
        ios.delivery.clock.move(60)
        await ios.send()
        await simulator.wait_requests(len(devices) + 1)
        await run_ready_tasks()
        key = RefusedKey(since_ms=sent_ms + 60_000, reason="InvalidProviderToken")
        assert await state() == GetAppleStateResponse(bad_tokens=tokens, refused_key=key, simulators=simulators)
        assert gauges() == (bad + 1, stopped + 1)
    assert gauges() == (bad, stopped)
    async with ios.running():
        known = (await state()).bad_tokens
        assert (known.since_ms, known.refused) == (sent_ms, len(devices))
        assert gauges() == (bad + 1, stopped)
    assert gauges() == (bad, stopped)


async def test_a_token_registered_after_apples_timestamp_is_kept(ios: IosHarness) -> None:
    async with ios.running():
        (device,) = await ios.register(UNREGISTERED_TOKEN)
        msgid = await ios.send(device)
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, FAILED, "Unregistered"))
        partition = Partition(DEVICE_COMMANDS.name, device.partition)
        *_, removal = [DeviceCommand.FromString(r.value) for r in await ios.delivery.records(partition)]
        assert removal.remove == RemoveDevice(reason="Unregistered", registered_before_ms=ios.delivery.clock.now_ms())
        assert await ios.device(UNREGISTERED_TOKEN) == device


async def test_an_unknown_token_is_tried_once_in_the_sandbox(ios: IosHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox_token = prefix_of(400, "BadDeviceToken") + VALID_TOKENS[0][6:]
    sandbox = ApnsSimulator(ios.delivery.clock)
    monkeypatch.setattr("services.apns_simulator.script.BY_PREFIX", {})
    default_endpoints = delivery_main._endpoints

    def with_sandbox(settings: Any, simulator: ApnsSimulator) -> dict[Environment, ApnsEndpoint]:
        both = default_endpoints(settings, simulator)
        return {**both, Environment.SANDBOX: ApnsEndpoint(sandbox.url, sandbox.authority)}

    default_credentials = delivery_main._simulator_credentials

    def both(simulator: ApnsSimulator) -> CredentialsSource:
        of = default_credentials(simulator)
        return lambda app: replace(found, environment=Environment.BOTH) if (found := of(app)) else None

    monkeypatch.setattr(delivery_main, "_endpoints", with_sandbox)
    monkeypatch.setattr(delivery_main, "_simulator_credentials", both)
    async with running_services([sandbox]), ios.running() as simulator:
        simulator.unknown_tokens = {sandbox_token}
        one, other = await ios.register(sandbox_token, MALFORMED_TOKEN)
        msgid = await ios.send()
        await ios.delivery.expect_outcomes(
            OutcomeRow(msgid, one, SENT), OutcomeRow(msgid, other, FAILED, "BadDeviceToken")
        )
        assert [received.token for received in sandbox.received] == [sandbox_token]
        assert (simulator.request_count, simulator.tokens, sandbox.refused) == (2, [], {"BadDeviceToken": 1})
