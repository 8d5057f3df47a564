"""A paused iOS app: nothing more is handed to Apple, and after the resume every device gets what is alive, once."""

from collections import Counter

import pytest

from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.registry_pb2 import GetAppRequest
from services.delivery.channels import FIRST_BACKOFF_MS, AppLimits
from services.delivery.channels.apns.service import ApnsService
from testkit.delivery.ios import VALID_TOKENS, IosHarness
from testkit.delivery.records import SENT, OutcomeRow
from testkit.waiting import run_ready_tasks


async def app_of(ios: IosHarness) -> App:
    app: App = (await ios.registry.GetApp(GetAppRequest(appkey=ios.appkey))).app
    return app


async def test_a_push_stops_in_the_middle_and_goes_on_after_the_resume(
    ios: IosHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request at a time is handed to Apple; one may be in flight when the app is paused."""
    monkeypatch.setattr(ApnsService, "limits", AppLimits(window=1))
    async with ios.running() as simulator:
        devices = await ios.register(*VALID_TOKENS)
        app = await app_of(ios)
        msgid = await ios.send(qps=1)
        await ios.advance_until(lambda: len(simulator.tokens) >= 2)
        await ios.delivery.pause(app)
        sent = len(simulator.tokens)
        await ios.delivery.advance(600, steps=600)
        assert len(simulator.tokens) <= sent + 1 < len(VALID_TOKENS)
        await ios.delivery.resume(app)
        await ios.advance_until(lambda: len(simulator.tokens) == len(VALID_TOKENS))
        await ios.delivery.expect_outcomes(*(OutcomeRow(msgid, device, SENT) for device in devices))
        assert Counter(simulator.tokens) == Counter(VALID_TOKENS)


async def test_a_retry_that_is_due_during_the_pause_waits_for_the_resume(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        (device,) = await ios.register(VALID_TOKENS[0])
        app = await app_of(ios)
        simulator.refusals = [(503, "ServiceUnavailable")]
        msgid = await ios.send(device)
        await simulator.all_refused.wait()
        await ios.delivery.pause(app)
        for _ in range(30):
            await ios.delivery.advance(FIRST_BACKOFF_MS / 1000)
        assert simulator.tokens == []
        expiring = await ios.send(device, period_s=60)
        await ios.delivery.advance(61)
        await ios.delivery.wait_facts("finished", 1)
        await ios.delivery.resume(app)
        await ios.advance_until(lambda: bool(simulator.tokens))
        await ios.delivery.expect_outcomes(OutcomeRow(msgid, device, SENT))
        await run_ready_tasks()
        assert [push.headers["apns-collapse-id"] for push in simulator.received] == [str(msgid)]
        assert expiring != msgid
    assert (await ios.delivery.verify()).equal


async def test_a_restart_while_the_app_is_paused_hands_nothing_to_apple_before_the_resume(ios: IosHarness) -> None:
    async with ios.running() as simulator:
        await ios.register(*VALID_TOKENS)
        app = await app_of(ios)
        await ios.delivery.pause(app)
        await ios.send()
        await ios.delivery.advance(30, steps=30)
        assert simulator.request_count == 0
    async with ios.running() as simulator:
        await ios.delivery.advance(30, steps=30)
        assert simulator.request_count == 0
        await ios.delivery.resume(app)
        await simulator.wait_accepted(len(VALID_TOKENS))
        await run_ready_tasks()
        assert Counter(simulator.tokens) == Counter(VALID_TOKENS)
