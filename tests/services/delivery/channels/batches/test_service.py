"""Honor, Xiaomi, OPPO and vivo against their simulators, over TLS and HTTP/1.1, and every documented answer of each."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import Message, SendPush
from protos.registry.v1.apps_pb2 import App
from services.delivery.channels.batches.answers import DAILY_CAP, OWN_CODES, AnswerAction
from services.delivery.channels.batches.days import next_day_ms
from services.delivery.channels.batches.service import VendorCheck
from services.delivery.state.pushes import StartedPush
from services.domain.addresses import address_hash
from services.domain.channel_credentials.limits import VendorLimits
from services.process.metrics import CHANNEL_ANSWERS, CHANNEL_STOPPED
from testkit.delivery.channel import APP, NOTIFICATION, START_MS
from testkit.delivery.vendors import SECRET, VENDORS, VendorHarness, running_vendor
from testkit.waiting import run_ready_tasks

SENT, FAILED = OutcomeKind.OUTCOME_KIND_SENT, OutcomeKind.OUTCOME_KIND_FAILED
PHONE = "CN_8fa0618f178145d8c2a44091a1326411"
USED_UP = {"xiaomi": "200001", "oppo": "33", "vivo": "10070"}
FINAL = (AnswerAction.FAIL, AnswerAction.RETURN, AnswerAction.REMOVE, AnswerAction.USED_UP)
ALARMING = (AnswerAction.FAIL, AnswerAction.USED_UP, AnswerAction.STOP_APP)


def counted(name: str, label: str) -> float:
    return float(CHANNEL_ANSWERS.labels(name, label)._value.get())


def phones(count: int) -> list[str]:
    return [f"{PHONE}{number}" for number in range(count)]


async def hours_pass(vendor: VendorHarness, hours: int) -> None:
    """Let more time pass than that after which an unused sender is closed."""
    for _ in range(hours):
        vendor.clock.move(3600)
        await run_ready_tasks()


@pytest.mark.parametrize("name", VENDORS)
async def test_a_push_reaches_every_phone_once(name: str) -> None:
    async with running_vendor(name) as vendor:
        vendor.start(*phones(120))
        await vendor.until(lambda: len(vendor.outcomes) == 120)
        assert set(vendor.outcomes.values()) == {(SENT, "")}
        assert sorted(received.token for received in vendor.simulator.received) == sorted(phones(120))
        assert len(vendor.simulator.shown(phones(1)[0])) == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (name, code)
        for name, case in VENDORS.items()
        for code, row in case.codes.items()
        if code not in OWN_CODES and row.action is not AnswerAction.ACCEPT
    ],
)
async def test_every_documented_answer_has_its_reaction_its_outcome_and_its_count(name: str, code: str) -> None:
    """Codes after which the message is sent again are scripted for the first request alone."""
    row = VENDORS[name].codes[code]
    reason = f"{code} {row.words}".strip()
    script = VENDORS[name].scripts.get(code, code)
    stopped = CHANNEL_STOPPED.labels(name)._value.get()
    async with running_vendor(name) as vendor:
        with capture_logs() as logs:
            vendor.start(f"{'' if row.action in FINAL else 'once-'}{script}:x")
            if row.action is AnswerAction.STOP_APP:
                await vendor.until(lambda: vendor.channel.stopped(APP) is not None)
                assert CHANNEL_STOPPED.labels(name)._value.get() == stopped + 1
            waited_s = await vendor.advance_until(lambda: bool(vendor.outcomes))
        alarms = [entry for entry in logs if entry["log_level"] == "error"]
        assert bool(alarms) == (row.action in ALARMING)
        assert all(entry["reason"] == reason for entry in alarms)
        assert vendor.outcomes == {0: (FAILED, reason) if row.action in FINAL else (SENT, "")}
        assert [each.clear_address.dead_reason for each in vendor.removed] == (
            [reason] if row.action is AnswerAction.REMOVE else []
        )
        if row.action in FINAL or row.action in (AnswerAction.LOWER, AnswerAction.SEND_AGAIN):
            assert waited_s == 0
        elif row.action is not AnswerAction.RENEW_TOKEN:
            assert waited_s >= (5 if row.action is AnswerAction.STOP_APP else 1)
        assert len(vendor.simulator.received) == (row.action not in FINAL)
    assert CHANNEL_STOPPED.labels(name)._value.get() == stopped


@pytest.mark.parametrize(("name", "code"), USED_UP.items())
async def test_a_quota_that_is_used_up_costs_no_request_until_the_next_day_in_china(name: str, code: str) -> None:
    async with running_vendor(name) as vendor:
        vendor.start(f"{code}:x")
        await vendor.until(lambda: len(vendor.outcomes) == 1)
        asked = vendor.simulator.requests
        await hours_pass(vendor, 4)
        vendor.start(*phones(5), msgid=9, period_s=3 * 86_400)
        await vendor.until(lambda: len(vendor.outcomes) == 6)
        assert {outcome[0] for outcome in vendor.outcomes.values()} == {FAILED}
        assert vendor.simulator.requests == asked
        vendor.clock.move((next_day_ms(START_MS) - vendor.clock.now_ms()) / 1000)
        vendor.start(*phones(2), msgid=10, period_s=3 * 86_400)
        await vendor.until(lambda: len(vendor.outcomes) == 8)
        assert [vendor.outcomes[number] for number in (6, 7)] == [(SENT, ""), (SENT, "")]


@pytest.mark.parametrize("name", VENDORS)
async def test_a_device_gets_no_more_marketing_messages_a_day_than_the_app_says(name: str) -> None:
    async with running_vendor(name) as vendor:
        vendor.account = replace(vendor.case.account, limits=VendorLimits(daily_cap=2))

        async def outcomes_of(msgid: int, **changes: Any) -> dict[int, tuple[int, str]]:
            vendor.addresses.clear()
            vendor.outcomes.clear()
            vendor.start(*phones(2), msgid=msgid, period_s=3 * 86_400, **changes)
            await vendor.until(lambda: len(vendor.outcomes) == 2)
            return vendor.outcomes

        for msgid in (7, 8):
            assert await outcomes_of(msgid) == {0: (SENT, ""), 1: (SENT, "")}
        await hours_pass(vendor, 4)
        assert await outcomes_of(9) == {0: (FAILED, DAILY_CAP), 1: (FAILED, DAILY_CAP)}
        vendor.clock.move((next_day_ms(START_MS) - vendor.clock.now_ms()) / 1000)
        assert await outcomes_of(10) == {0: (SENT, ""), 1: (SENT, "")}
        assert len(vendor.simulator.received) == 6


@pytest.mark.parametrize("name", VENDORS)
async def test_messages_go_at_the_speed_that_the_app_says_shared_by_instances(name: str) -> None:
    async with running_vendor(name) as vendor:
        vendor.account = replace(vendor.case.account, limits=VendorLimits(per_s=20))
        vendor.service.shards = 2
        vendor.start(*phones(40))
        tenths = 0
        while len(vendor.outcomes) < 40 and tenths < 100:
            for _ in range(50):
                await asyncio.sleep(0.0002)
            vendor.clock.move(0.1)
            tenths += 1
        assert 35 <= tenths <= 50
        assert set(vendor.outcomes.values()) == {(SENT, "")}


@pytest.mark.parametrize("name", VENDORS)
@pytest.mark.parametrize("fault", ["cut", "lost", "503"])
async def test_messages_without_an_answer_are_sent_again_and_shown_once(name: str, fault: str) -> None:
    async with running_vendor(name) as vendor:
        vendor.start(f"once-{fault}:x", *phones(2))
        await vendor.advance_until(lambda: len(vendor.outcomes) == 3)
        assert set(vendor.outcomes.values()) == {(SENT, "")}
        for phone in (f"once-{fault}:x", *phones(2)):
            assert len(vendor.simulator.shown(phone)) == 1


@pytest.mark.parametrize("name", VENDORS)
async def test_a_refused_secret_stops_the_app_and_is_told_nowhere(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    async with running_vendor(name) as vendor:
        fields = vendor.case.account.__dataclass_fields__
        secret = next(each for each in fields if each.endswith("secret"))
        wrong = {each: getattr(vendor.case.account, each) for each in fields} | {secret: "canary-of-another"}
        vendor.account = type(vendor.case.account)(**wrong)
        vendor.start(*phones(2))
        await vendor.until(lambda: vendor.channel.stopped(APP) is not None)
        stopped = vendor.channel.stopped(APP)
        check = await VendorCheck(vendor.service, simulated=True)(App(appkey=APP))
        assert (check.accepted, check.simulated, vendor.outcomes) == (False, True, {})
        vendor.account = vendor.case.account
        await vendor.advance_until(lambda: len(vendor.outcomes) == 2)
        assert set(vendor.outcomes.values()) == {(SENT, "")}
        said = "".join(capfd.readouterr()) + repr(vendor.outcomes) + str(stopped) + str(check) + repr(vendor.account)
    assert "canary-of-another" not in said
    assert SECRET not in said


@pytest.mark.parametrize("name", VENDORS)
async def test_a_check_says_whether_the_vendor_accepts_the_credentials(name: str) -> None:
    async with running_vendor(name) as vendor:
        check = VendorCheck(vendor.service, simulated=False)
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.simulated) == (True, False)
        vendor.account = None
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.reason) == (False, vendor.service.vendor.missing)


@pytest.mark.parametrize("name", VENDORS)
async def test_messages_for_the_app_alone_are_carried_where_the_vendor_has_them(name: str) -> None:
    async with running_vendor(name) as vendor:
        carried = [
            vendor.service.can_carry(StartedPush(SendPush(message=message), 0, START_MS))
            for message in (NOTIFICATION, Message(content="data"))
        ]
    assert carried == [True, name in ("honor", "xiaomi")]


@pytest.mark.parametrize("name", VENDORS)
async def test_an_invalid_address_is_removed_with_the_hash_of_it(name: str) -> None:
    dead = [code for code, row in VENDORS[name].codes.items() if row.action is AnswerAction.REMOVE]
    if not dead:
        assert name == "xiaomi"  # its receipts tell of invalid addresses
        return
    address = f"{VENDORS[name].scripts.get(dead[0], dead[0])}:x"
    async with running_vendor(name) as vendor:
        vendor.start(address)
        await vendor.until(lambda: len(vendor.outcomes) == 1)
        (removed,) = vendor.removed
        assert removed.clear_address.channel == vendor.service.channel
        assert removed.clear_address.only_hash == address_hash(vendor.service.channel, address)


@pytest.mark.parametrize("name", VENDORS)
async def test_a_stop_ends_a_request_without_an_answer(name: str) -> None:
    async with running_vendor(name) as vendor:
        vendor.start("silence:x", *phones(1))
        await vendor.until(lambda: vendor.simulator.requests >= 1)
        vendor.outcomes.clear()
    await asyncio.sleep(0)
