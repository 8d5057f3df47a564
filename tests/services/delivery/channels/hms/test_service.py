"""HMS against the simulator, over TLS and HTTP/1.1: batches, and what follows from every documented answer."""

import asyncio

import pytest
from structlog.testing import capture_logs

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import IMPORTANCE_HIGH, Message
from protos.registry.v1.apps_pb2 import CHANNEL_HMS, App
from services.delivery.channels import RetryHistory
from services.delivery.channels.batches.answers import CREDENTIALS_REFUSED, OWN_CODES, AnswerAction
from services.delivery.channels.batches.service import VendorCheck
from services.delivery.channels.hms.responses import CODES
from services.delivery.channels.hms.service import send_path
from services.delivery.channels.huawei import MAX_TOKENS
from services.domain.addresses import address_hash
from services.domain.channel_credentials.hms import HmsCredentials
from services.process.metrics import CHANNEL_ANSWERS, CHANNEL_STOPPED, CHANNEL_TOKENS, CHANNEL_UNREACHABLE
from testkit.delivery.channel import APP, MSGID, NOTIFICATION, START_MS
from testkit.delivery.hms import CLIENT, running_hms

SENT, FAILED = OutcomeKind.OUTCOME_KIND_SENT, OutcomeKind.OUTCOME_KIND_FAILED
PHONE = "IQAAAACy0tMAAAB"
OF_REQUESTS = [code for code in CODES if code not in (*OWN_CODES, "80000000")]


def counted(label: str) -> float:
    return float(CHANNEL_ANSWERS.labels("hms", label)._value.get())


def phones(count: int) -> list[str]:
    return [f"{PHONE}{number}" for number in range(count)]


async def test_a_push_goes_to_many_phones_in_one_request() -> None:
    async with running_hms() as hms:
        hms.start(*phones(300))
        await hms.until(lambda: len(hms.outcomes) == 300)
        assert set(hms.outcomes.values()) == {(SENT, "")}
        assert {received.token for received in hms.simulator.received} == set(phones(300))
        assert (sum(hms.simulator.batches), hms.simulator.clients.granted) == (300, 1)
        assert hms.simulator.requests <= 6
        assert list(hms.simulator.shown(phones(1)[0])) == [f"carillon-{MSGID}"]


async def test_requests_are_as_large_as_huawei_takes_and_pushes_do_not_mix() -> None:
    async with running_hms() as hms:
        hms.client = HmsCredentials("104520345", "another")
        hms.start(*phones(1500))
        hms.start(*(f"{each}b" for each in phones(200)), msgid=9)
        await hms.until(lambda: hms.channel.stopped(APP) is not None or hms.simulator.refused["invalid_client"] > 0)
        hms.simulator.clients.register(hms.client)
        await hms.advance_until(lambda: len(hms.outcomes) == 1700)
        assert set(hms.outcomes.values()) == {(SENT, "")}
        assert max(hms.simulator.batches) <= MAX_TOKENS
        shown = {tag for phone in phones(200) for tag in hms.simulator.shown(f"{phone}b")}
        assert shown == {"carillon-9"}
        assert len({received.token for received in hms.simulator.received}) == 1700


async def test_of_a_request_only_the_invalid_addresses_are_removed() -> None:
    async with running_hms() as hms:
        addresses = ["80100000:x", *phones(20), "not-a-token/", "80300007:x"]
        hms.start(*addresses)
        await hms.until(lambda: len(hms.outcomes) == 23)
        dead = {0, 21, 22}
        assert {number for number, outcome in hms.outcomes.items() if outcome != (SENT, "")} == dead
        assert {hms.outcomes[number] for number in dead} == {(FAILED, "80100000 invalid token")}
        removed = {command.clear_address.only_hash for command in hms.removed}
        assert removed == {address_hash(CHANNEL_HMS, addresses[number]) for number in dead}
        assert {command.clear_address.channel for command in hms.removed} == {CHANNEL_HMS}
        assert hms.simulator.requests == 1


@pytest.mark.parametrize("code", OF_REQUESTS)
async def test_every_documented_answer_has_its_reaction_its_outcome_and_its_count(code: str) -> None:
    """Codes after which the message is sent again are scripted for the first request alone."""
    action, reason = CODES[code].action, f"{code} {CODES[code].words}"
    is_final = action in (AnswerAction.FAIL, AnswerAction.REMOVE, AnswerAction.SPLIT)
    address = f"{'' if is_final else 'once-'}{code}:x"
    told = "80300007 all tokens invalid" if action is AnswerAction.REMOVE else reason
    before, stopped = counted(told), CHANNEL_STOPPED.labels("hms")._value.get()
    async with running_hms() as hms:
        with capture_logs() as logs:
            hms.start(address)
            await hms.until(lambda: counted(told) == before + 1)
            if action is AnswerAction.STOP_APP:
                await hms.until(lambda: hms.channel.stopped(APP) is not None)
                assert CHANNEL_STOPPED.labels("hms")._value.get() == stopped + 1
            if action in (AnswerAction.RENEW_TOKEN, AnswerAction.LOWER):
                await hms.until(lambda: bool(hms.outcomes))
            waited_s = await hms.advance_until(lambda: bool(hms.outcomes))
        alarms = [entry for entry in logs if entry["log_level"] == "error"]
        match action:
            case AnswerAction.FAIL | AnswerAction.SPLIT:
                assert hms.outcomes == {0: (FAILED, reason)}
                assert alarms[0]["reason"] == reason
            case AnswerAction.REMOVE:
                assert hms.outcomes == {0: (FAILED, told)}
                (removed,) = hms.removed
                assert removed.clear_address.dead_reason == told
            case AnswerAction.RENEW_TOKEN:
                assert (waited_s, hms.simulator.clients.granted) == (0, 2)
            case AnswerAction.STOP_APP:
                assert alarms[0]["reason"] == reason
                assert waited_s >= 5
            case AnswerAction.LOWER:
                assert waited_s == 0
            case _:
                assert waited_s >= 1
        if not is_final:
            assert hms.outcomes == {0: (SENT, "")}
        is_alarm = action in (AnswerAction.FAIL, AnswerAction.SPLIT, AnswerAction.STOP_APP)
        assert bool(alarms) == is_alarm
    assert CHANNEL_STOPPED.labels("hms")._value.get() == stopped


@pytest.mark.parametrize("message", [NOTIFICATION, Message(content="data")])
async def test_without_the_right_to_high_importance_messages_have_a_normal_one(message: Message) -> None:
    async with running_hms() as hms:
        hms.start(*phones(3), importance=IMPORTANCE_HIGH, message=message)
        await hms.until(lambda: len(hms.outcomes) == 3)
        assert (set(hms.outcomes.values()), hms.simulator.requests) == ({(SENT, "")}, 2)
        android = hms.simulator.received[0].message.android
        assert (android.notification.importance if android.notification else android.urgency) == "NORMAL"


async def test_a_request_with_too_many_addresses_is_split() -> None:
    """Huawei may lower its limit, or ask for one address a request."""
    async with running_hms() as hms:
        hms.start("once-80300010:x", *phones(99))
        await hms.until(lambda: len(hms.outcomes) == 100)
        assert set(hms.outcomes.values()) == {(SENT, "")}
        assert (hms.simulator.requests, sorted(hms.simulator.batches)) == (3, [50, 50])


@pytest.mark.parametrize("fault", ["cut", "lost"])
async def test_messages_without_an_answer_are_sent_again_and_shown_once(fault: str) -> None:
    async with running_hms() as hms:
        hms.start(f"once-{fault}:x", *phones(2))
        await hms.advance_until(lambda: len(hms.outcomes) == 3)
        assert set(hms.outcomes.values()) == {(SENT, "")}
        for phone in (f"once-{fault}:x", *phones(2)):
            assert [*hms.simulator.shown(phone)] == [f"carillon-{MSGID}"]


async def test_a_message_that_never_has_an_answer_is_recorded_as_unknown() -> None:
    async with running_hms() as hms:
        hms.start("cut:x", period_s=10)
        await hms.until(lambda: hms.simulator.requests == 1)
        await hms.advance_until(lambda: bool(hms.outcomes))
        ((kind, reason),) = hms.outcomes.values()
        assert kind == FAILED
        assert reason.startswith("unknown: connection lost")


async def test_flow_control_holds_up_all_messages_of_the_client() -> None:
    async with running_hms() as hms:
        hms.simulator.retry_after = "90"
        hms.start("once-503:x")
        await hms.until(lambda: bool(hms.service.sender(CLIENT, RetryHistory()).batches.held_ms))
        hms.start(*phones(50), msgid=9)
        check = await VendorCheck(hms.service, simulated=True)(App(appkey=APP))
        assert (check.accepted, check.reason) == (False, "no requests for 90 s, after refusals")
        await hms.advance_until(lambda: len(hms.outcomes) == 51, 10)
        assert hms.clock.now_ms() >= START_MS + 90_000
        assert hms.simulator.requests == 3


async def test_flow_control_without_a_time_waits_longer_each_time() -> None:
    async with running_hms() as hms:
        hms.start("503:x", period_s=30)
        await hms.advance_until(lambda: hms.clock.now_ms() >= START_MS + 30_000)
        assert 4 <= hms.simulator.requests <= 5


async def test_tokens_that_expired_are_replaced_once() -> None:
    async with running_hms() as hms:
        hms.start(*phones(1))
        await hms.until(lambda: len(hms.outcomes) == 1)
        hms.simulator.clients.expire_tokens()
        hms.outcomes.clear()
        hms.start(*phones(50))
        await hms.until(lambda: len(hms.outcomes) == 50)
        assert (set(hms.outcomes.values()), hms.simulator.clients.granted) == ({(SENT, "")}, 2)


async def test_a_refused_secret_stops_the_app_and_is_told_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    refused = CHANNEL_TOKENS.labels("hms", "refused")._value.get()
    async with running_hms() as hms:
        hms.simulator.clients.delete(CLIENT.client_id)
        hms.start(*phones(2))
        await hms.until(lambda: hms.channel.stopped(APP) is not None)
        stopped = hms.channel.stopped(APP)
        assert stopped is not None
        assert stopped.reason == CREDENTIALS_REFUSED
        assert (hms.simulator.requests, hms.outcomes) == (0, {})
        assert CHANNEL_TOKENS.labels("hms", "refused")._value.get() == refused + 1
        check = await VendorCheck(hms.service, simulated=True)(App(appkey=APP))
        assert (check.accepted, check.simulated) == (False, True)
        hms.simulator.clients.register(CLIENT)
        await hms.advance_until(lambda: len(hms.outcomes) == 2)
        assert set(hms.outcomes.values()) == {(SENT, "")}
        said = "".join(capfd.readouterr()) + repr(hms.outcomes) + str(stopped) + str(check) + repr(CLIENT)
    assert "--hms-client-secret FILE" in said
    assert CLIENT.client_secret not in said
    assert "DAED/" not in said


async def test_a_server_that_cannot_be_reached_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was requested, so the messages wait here, and what is not wanted any more is not sent."""
    unreachable = CHANNEL_UNREACHABLE.labels("hms")._value.get
    before = unreachable()
    async with running_hms() as hms:
        hms.start(*phones(1))
        await hms.until(lambda: len(hms.outcomes) == 1)
        batches = hms.service.sender(CLIENT, RetryHistory()).batches
        port, batches._server._port = batches._server._port, 1
        batches._server._idle.close()
        hms.start(*(f"{each}b" for each in phones(2)), msgid=9, period_s=3600)
        await hms.until(lambda: unreachable() == before + 1)
        batches._server._port = port
        await hms.advance_until(lambda: len(hms.outcomes) == 3)
        assert (unreachable(), hms.simulator.requests) == (before, 2)


@pytest.mark.parametrize(
    ("project", "path"), [("", "/v1/104520345/messages:send"), ("388421841", "/v2/388421841/messages:send")]
)
async def test_the_project_chooses_the_version_of_the_call(project: str, path: str) -> None:
    client = HmsCredentials("104520345", CLIENT.client_secret, project)
    assert send_path(client) == path
    async with running_hms() as hms:
        hms.client = client
        hms.simulator.clients.register(client)
        hms.start(*phones(1))
        await hms.until(lambda: len(hms.outcomes) == 1)
        assert hms.outcomes == {0: (SENT, "")}


async def test_a_check_sends_nothing_and_says_whether_huawei_accepts_the_credentials() -> None:
    async with running_hms() as hms:
        check = VendorCheck(hms.service, simulated=False)
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.reason, answer.simulated) == (True, "80000000", False)
        assert [received.is_dry for received in hms.simulator.received] == [True]
        assert hms.simulator.shown("carillon-check") == {}
        hms.client = HmsCredentials("104520345", CLIENT.client_secret, "another")
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.reason) == (False, "80200001 not authenticated")
        hms.client = None
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.reason) == (False, "the app has no usable client ID and secret for HMS")


async def test_a_stop_ends_a_request_without_an_answer() -> None:
    async with running_hms() as hms:
        hms.start("silence:x", *phones(1))
        await hms.until(lambda: hms.simulator.requests == 1)
    assert hms.outcomes == {}
    await asyncio.sleep(0)
