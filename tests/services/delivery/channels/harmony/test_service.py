"""HarmonyOS against the simulator, over TLS and HTTP/1.1: batches, and what follows from every documented answer."""

import asyncio

import pytest
from structlog.testing import capture_logs

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import CHANNEL_HARMONY, App
from services.delivery.channels import RetryHistory
from services.delivery.channels.access_tokens import REFRESHED_AT
from services.delivery.channels.batches.answers import OWN_CODES, AnswerAction
from services.delivery.channels.batches.service import VendorCheck
from services.delivery.channels.harmony.responses import CODES, REASONS
from services.delivery.channels.harmony.service import JWT_S, account_tokens, send_path
from services.domain.addresses import address_hash
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.hms_simulator.harmony import HarmonySimulator
from services.process.clock import ManualClock
from services.process.metrics import CHANNEL_ANSWERS, CHANNEL_STOPPED
from testkit.delivery.channel import APP, MSGID, START_MS
from testkit.delivery.harmony import running_harmony

SENT, FAILED = OutcomeKind.OUTCOME_KIND_SENT, OutcomeKind.OUTCOME_KIND_FAILED
PHONE = "MAMzLgIkEUWTUCTA0tM"
OWN = (*OWN_CODES, "80000000", "80100000")
OF_REQUESTS = [code for code in CODES if code not in OWN and code not in REASONS]


def counted(label: str) -> float:
    return float(CHANNEL_ANSWERS.labels("harmony", label)._value.get())


def phones(count: int) -> list[str]:
    return [f"{PHONE}{number}" for number in range(count)]


async def test_a_push_goes_to_many_phones_in_one_request(account: HarmonyAccount) -> None:
    async with running_harmony(account) as harmony:
        harmony.start(*phones(1500))
        await harmony.until(lambda: len(harmony.outcomes) == 1500)
        assert set(harmony.outcomes.values()) == {(SENT, "")}
        assert {received.token for received in harmony.simulator.received} == set(phones(1500))
        assert max(harmony.simulator.batches) <= 1000
        assert list(harmony.simulator.shown(phones(1)[0])) == [1 + MSGID]


async def test_of_a_request_only_the_invalid_addresses_are_removed(account: HarmonyAccount) -> None:
    async with running_harmony(account) as harmony:
        addresses = ["noRight:x", *phones(20), "not-a-token/", "countryNotSupport:x"]
        harmony.start(*addresses)
        await harmony.until(lambda: len(harmony.outcomes) == 23)
        assert {number: outcome for number, outcome in harmony.outcomes.items() if outcome != (SENT, "")} == {
            0: (FAILED, "noRight"), 21: (FAILED, "tokenFormatError"), 22: (FAILED, "countryNotSupport"),
        }  # fmt: skip
        removed = {command.clear_address.only_hash for command in harmony.removed}
        assert removed == {address_hash(CHANNEL_HARMONY, addresses[number]) for number in (0, 21)}
        assert {command.clear_address.channel for command in harmony.removed} == {CHANNEL_HARMONY}
        assert harmony.simulator.requests == 1


@pytest.mark.parametrize("code", OF_REQUESTS)
async def test_every_documented_answer_has_its_reaction_its_outcome_and_its_count(
    account: HarmonyAccount, code: str
) -> None:
    """Codes after which the message is sent again are scripted for the first request alone."""
    action, reason = CODES[code].action, f"{code} {CODES[code].words}"
    is_final = action in (AnswerAction.FAIL, AnswerAction.SPLIT)
    before, stopped = counted(reason), CHANNEL_STOPPED.labels("harmony")._value.get()
    async with running_harmony(account) as harmony:
        with capture_logs() as logs:
            harmony.start(f"{'' if is_final else 'once-'}{code}:x")
            await harmony.until(lambda: counted(reason) == before + 1)
            if action is AnswerAction.STOP_APP:
                await harmony.until(lambda: harmony.channel.stopped(APP) is not None)
                assert CHANNEL_STOPPED.labels("harmony")._value.get() == stopped + 1
            if action is AnswerAction.RENEW_TOKEN:
                await harmony.until(lambda: bool(harmony.outcomes))
            waited_s = await harmony.advance_until(lambda: bool(harmony.outcomes))
        alarms = [entry["reason"] for entry in logs if entry["log_level"] == "error"]
        assert alarms == ([reason] if is_final or action is AnswerAction.STOP_APP else [])
        assert harmony.outcomes == {0: (FAILED, reason) if is_final else (SENT, "")}
        assert harmony.removed == []
        assert waited_s >= {AnswerAction.STOP_APP: 5, AnswerAction.RETRY: 1, AnswerAction.REPEAT: 1}.get(action, 0)
    assert CHANNEL_STOPPED.labels("harmony")._value.get() == stopped


@pytest.mark.parametrize("why", sorted(HarmonySimulator.reasons))
async def test_every_documented_reason_of_a_refused_address_has_its_reaction(account: HarmonyAccount, why: str) -> None:
    action = CODES[why].action if why in CODES else AnswerAction.STOP_APP
    is_stopped = action is AnswerAction.STOP_APP
    async with running_harmony(account) as harmony:
        harmony.start(f"{'once-' if is_stopped else ''}{why}:x")
        if is_stopped:
            await harmony.until(lambda: harmony.channel.stopped(APP) is not None)
            stopped = harmony.channel.stopped(APP)
            assert stopped is not None
            assert stopped.reason == why
        await harmony.advance_until(lambda: bool(harmony.outcomes))
        assert harmony.outcomes == {0: (SENT, "") if is_stopped else (FAILED, why)}
        dead = [command.clear_address.dead_reason for command in harmony.removed]
        assert dead == ([why] if action is AnswerAction.REMOVE else [])


@pytest.mark.parametrize("fault", ["cut", "lost"])
async def test_messages_without_an_answer_are_sent_again_and_shown_once(account: HarmonyAccount, fault: str) -> None:
    async with running_harmony(account) as harmony:
        harmony.start(f"once-{fault}:x", *phones(2))
        await harmony.advance_until(lambda: len(harmony.outcomes) == 3)
        assert set(harmony.outcomes.values()) == {(SENT, "")}
        for phone in (f"once-{fault}:x", *phones(2)):
            assert [*harmony.simulator.shown(phone)] == [1 + MSGID]


async def test_flow_control_holds_up_all_messages_of_the_account(account: HarmonyAccount) -> None:
    async with running_harmony(account) as harmony:
        harmony.simulator.retry_after = "90"
        harmony.start("once-503:x")
        await harmony.until(lambda: bool(harmony.service.sender(account, RetryHistory()).batches.held_ms))
        harmony.start(*phones(50), msgid=9)
        await harmony.advance_until(lambda: len(harmony.outcomes) == 51, 10)
        assert harmony.clock.now_ms() >= START_MS + 90_000
        assert harmony.simulator.requests == 3


async def test_messages_for_the_app_are_sent_as_such(account: HarmonyAccount) -> None:
    async with running_harmony(account) as harmony:
        harmony.start(*phones(2), message=Message(content="data"))
        await harmony.until(lambda: len(harmony.outcomes) == 2)
        assert set(harmony.outcomes.values()) == {(SENT, "")}
        assert harmony.simulator.shown(phones(1)[0]) == {}


async def test_a_signature_is_used_until_it_ends_soon(account: HarmonyAccount) -> None:
    clock = ManualClock(START_MS)
    tokens = account_tokens(account, clock)
    first = await tokens.text()
    clock.move(JWT_S * REFRESHED_AT - 1)
    assert await tokens.text() == first
    clock.move(1)
    assert tokens.current() == first
    await asyncio.sleep(0)
    assert tokens.current() != first
    await tokens.close()


async def test_an_account_that_huawei_does_not_know_stops_the_app_and_its_key_is_told_nowhere(
    account: HarmonyAccount, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running_harmony(account) as harmony:
        harmony.simulator.delete(account)
        harmony.start(*phones(2))
        await harmony.until(lambda: harmony.channel.stopped(APP) is not None)
        check = await VendorCheck(harmony.service, simulated=True)(App(appkey=APP))
        assert (check.accepted, check.reason, check.simulated) == (False, "80200001 not authenticated", True)
        harmony.simulator.register(account)
        await harmony.advance_until(lambda: len(harmony.outcomes) == 2)
        said = "".join(capfd.readouterr()) + repr(harmony.outcomes) + str(check) + repr(account)
    assert "BEGIN" not in said
    assert account.private_key.split("\n")[1] not in said


async def test_a_check_shows_nothing_and_says_whether_huawei_accepts_the_account(account: HarmonyAccount) -> None:
    assert send_path(account) == "/v3/388421841/messages:send"
    async with running_harmony(account) as harmony:
        check = VendorCheck(harmony.service, simulated=False)
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.reason, answer.simulated) == (True, "80000000", False)
        assert [received.is_dry for received in harmony.simulator.received] == [True]
        assert harmony.simulator.shown("carillon-check") == {}
        harmony.account = None
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.reason) == (False, "the app has no usable service account for HarmonyOS")


async def test_a_stop_ends_a_request_without_an_answer(account: HarmonyAccount) -> None:
    async with running_harmony(account) as harmony:
        harmony.start("silence:x", *phones(1))
        await harmony.until(lambda: harmony.simulator.requests == 1)
    assert harmony.outcomes == {}
    await asyncio.sleep(0)
