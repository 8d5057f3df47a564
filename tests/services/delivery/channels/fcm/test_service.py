"""FCM's channel against the simulator, over TLS and HTTP/2: what follows from every documented answer."""

import asyncio

import pytest
from structlog.testing import capture_logs

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, App
from services.delivery.channels import RetryHistory
from services.delivery.channels.fcm.responses import ACCOUNT_REFUSED, HANDLINGS, FcmAction
from services.delivery.channels.fcm.sender import FcmEndpoint, TokenServer
from services.delivery.channels.fcm.service import FcmCheck, target_of
from services.delivery.channels.shared_senders import SharedSenders
from services.domain.addresses import address_hash
from services.fcm_simulator.accounts import new_account
from services.process.clock import ManualClock
from services.process.metrics import CHANNEL_ANSWERS, CHANNEL_STOPPED, CHANNEL_TOKENS, CHANNEL_UNREACHABLE
from testkit.apns.keys import canaries
from testkit.delivery.fcm import ACCOUNT, APP, MSGID, PROJECT, START_MS, running_fcm
from testkit.ports import free_ports
from testkit.waiting import until_holds

SENT, FAILED = OutcomeKind.OUTCOME_KIND_SENT, OutcomeKind.OUTCOME_KIND_FAILED
ADDRESS = "cXz1y:APA91bH"


def counted(reason: str) -> float:
    return float(CHANNEL_ANSWERS.labels("fcm", reason)._value.get())


async def test_a_notification_is_sent_with_a_tag_and_an_access_token_that_all_messages_share() -> None:
    async with running_fcm() as fcm:
        addresses = [f"{ADDRESS}{number}" for number in range(300)]
        fcm.start(*addresses, "cXz1yAPA91bHcXz1yAPA91")
        await fcm.until(lambda: len(fcm.outcomes) == 301)
        assert set(fcm.outcomes.values()) == {(SENT, "")}
        assert fcm.simulator.accounts.granted == 1
        assert {received.address for received in fcm.simulator.received} == {*addresses, "cXz1yAPA91bHcXz1yAPA91"}
        assert {received.project_id for received in fcm.simulator.received} == {PROJECT}
        (shown,) = fcm.simulator.shown(addresses[0])
        assert shown == f"carillon-{MSGID}"


@pytest.mark.parametrize(("status", "reason"), HANDLINGS)
async def test_every_documented_answer_has_its_reaction_its_outcome_and_its_count(status: int, reason: str) -> None:
    """Rows that are retried are scripted for the first request alone, so the second one is accepted."""
    if reason == ACCOUNT_REFUSED:
        pytest.skip("it is no answer to a message; see the test of refused accounts")
    action = HANDLINGS[status, reason]
    once = "" if action in (FcmAction.FAIL, FcmAction.REMOVE) else "once-"
    address, label = f"{once}{status}-{reason}:x", f"{status} {reason}"
    before, stopped = counted(label), CHANNEL_STOPPED.labels("fcm")._value.get()
    async with running_fcm() as fcm:
        with capture_logs() as logs:
            fcm.start(address)
            await fcm.until(lambda: counted(label) == before + 1)
            if action is FcmAction.STOP_APP:
                await fcm.until(lambda: fcm.channel.stopped(APP) is not None)
                assert CHANNEL_STOPPED.labels("fcm")._value.get() == stopped + 1
            if action is FcmAction.RENEW_TOKEN:
                await fcm.until(lambda: bool(fcm.outcomes))
            waited_s = await fcm.advance_until(lambda: bool(fcm.outcomes), 10 if status == 429 else 1)
        alarms = [entry for entry in logs if entry["log_level"] == "error"]
        match action:
            case FcmAction.FAIL:
                assert fcm.outcomes == {0: (FAILED, reason)}
                assert alarms[0]["reason"] == reason
            case FcmAction.REMOVE:
                assert fcm.outcomes == {0: (FAILED, reason)}
                (removed,) = fcm.removed
                clear = removed.clear_address
                assert (clear.channel, clear.dead_reason) == (CHANNEL_FCM, reason)
                assert clear.only_hash == address_hash(CHANNEL_FCM, address)
            case FcmAction.RENEW_TOKEN:
                assert (waited_s, fcm.simulator.accounts.granted) == (0, 2)
            case FcmAction.STOP_APP:
                assert alarms[0]["reason"] == reason
                assert waited_s >= 5
            case FcmAction.RETRY if status == 429:
                assert waited_s >= 60
            case _:
                assert waited_s >= 1
        if once:
            assert fcm.outcomes == {0: (SENT, "")}
        assert bool(alarms) == (action in (FcmAction.FAIL, FcmAction.STOP_APP))
    assert CHANNEL_STOPPED.labels("fcm")._value.get() == stopped


@pytest.mark.parametrize("address", ["not-a-token", "400-TOKEN:x"])
async def test_what_google_calls_no_token_is_removed(address: str) -> None:
    async with running_fcm() as fcm:
        fcm.start(address, ADDRESS)
        await fcm.until(lambda: len(fcm.outcomes) == 2)
        assert fcm.outcomes == {0: (FAILED, "INVALID_ARGUMENT message.token"), 1: (SENT, "")}
        assert [command.clear_address.only_hash for command in fcm.removed] == [address_hash(CHANNEL_FCM, address)]


@pytest.mark.parametrize("fault", ["cut", "reset"])
async def test_a_message_without_an_answer_is_sent_again_and_shown_once(fault: str) -> None:
    async with running_fcm() as fcm:
        fcm.start(f"once-{fault}:x", ADDRESS)
        await fcm.advance_until(lambda: len(fcm.outcomes) == 2)
        assert set(fcm.outcomes.values()) == {(SENT, "")}
        assert [*fcm.simulator.shown(f"once-{fault}:x")] == [f"carillon-{MSGID}"]


async def test_a_message_that_never_has_an_answer_is_recorded_as_unknown() -> None:
    async with running_fcm() as fcm:
        fcm.start("reset:x", period_s=10)
        await fcm.until(lambda: fcm.simulator.requests == 1)
        await fcm.advance_until(lambda: bool(fcm.outcomes))
        assert fcm.outcomes == {0: (FAILED, "unknown: reset: INTERNAL_ERROR")}


async def test_retry_after_holds_up_the_whole_account() -> None:
    async with running_fcm() as fcm:
        fcm.simulator.retry_after = "90"
        fcm.start("once-429-QUOTA_EXCEEDED:x")
        await fcm.until(lambda: fcm.simulator.requests == 1)
        fcm.start(ADDRESS)
        await fcm.advance_until(lambda: len(fcm.outcomes) == 2, 10)
        assert fcm.clock.now_ms() >= 1_800_000_000_000 + 90_000
        assert fcm.simulator.requests == 3


async def test_the_end_of_the_quota_is_awaited_beside_the_back_off_of_a_connection() -> None:
    async with running_fcm() as fcm:
        sender = fcm.service.sender(ACCOUNT, RetryHistory())
        circuit = sender._slots[1].circuit
        for _ in range(10):
            circuit.trip(max(START_MS, circuit.open_until_ms))
        fcm.simulator.retry_after = "90"
        fcm.start(*(f"{ADDRESS}{number}" for number in range(150)))
        fcm.start("once-429-QUOTA_EXCEEDED:x", period_s=30)
        fcm.start(*(f"{ADDRESS}{number}" for number in range(150, 450)))
        await fcm.until(lambda: bool(sender.held_ms))
        assert len(fcm.outcomes) < 451
        assert await fcm.advance_until(lambda: len(fcm.outcomes) == 451, 10) < 600
        assert fcm.clock.now_ms() >= START_MS + 90_000


async def test_a_check_says_that_the_quota_is_used_up_and_asks_nothing() -> None:
    async with running_fcm() as fcm:
        fcm.simulator.retry_after = "90"
        with capture_logs() as logs:
            fcm.start("once-429-QUOTA_EXCEEDED:x")
            await fcm.until(lambda: bool(fcm.service.sender(ACCOUNT, RetryHistory()).held_ms))
        (told,) = [entry for entry in logs if entry["event"] == "FCM's quota is used up"]
        assert (told["project"], told["wait_s"]) == (PROJECT, 90)
        answer = await FcmCheck(fcm.service, simulated=True)(App(appkey=APP))
        assert not answer.accepted
        assert answer.reason == "429 the quota is used up; Google wants no requests for 90 s"
        assert fcm.simulator.requests == 1


async def test_the_sender_of_a_replaced_account_is_closed() -> None:
    async with running_fcm() as fcm:
        fcm.start(ADDRESS)
        await fcm.until(lambda: len(fcm.outcomes) == 1)
        former, hour_s = fcm.service.sender(ACCOUNT, RetryHistory()), SharedSenders.UNUSED_MS // 1000
        other = new_account(PROJECT)
        fcm.simulator.accounts.register(other)
        fcm.account = other
        for number in range(1, 4):
            fcm.start(f"{ADDRESS}{number}", period_s=86_400)
            await fcm.until(lambda: len(fcm.outcomes) == number + 1)  # noqa: B023  # awaited at once
            fcm.clock.move(hour_s - 60)
        await fcm.until(lambda: former._closed and not former._connections)
        assert not fcm.service.sender(other, RetryHistory())._closed
        assert fcm.service.sender(ACCOUNT, RetryHistory()) is not former


async def test_tokens_that_google_revokes_are_replaced_once() -> None:
    async with running_fcm() as fcm:
        fcm.start(ADDRESS)
        await fcm.until(lambda: len(fcm.outcomes) == 1)
        fcm.simulator.accounts.revoke_tokens()
        fcm.outcomes.clear()
        fcm.start(*(f"{ADDRESS}{number}" for number in range(50)))
        await fcm.until(lambda: len(fcm.outcomes) == 50)
        assert (set(fcm.outcomes.values()), fcm.simulator.accounts.granted) == ({(SENT, "")}, 2)


async def test_a_refused_account_stops_the_app_and_its_key_is_told_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    refused = CHANNEL_TOKENS.labels("fcm", "refused")._value.get()
    async with running_fcm() as fcm:
        fcm.simulator.accounts.delete(ACCOUNT)
        fcm.start(ADDRESS, f"{ADDRESS}1")
        await fcm.until(lambda: fcm.channel.stopped(APP) is not None)
        stopped = fcm.channel.stopped(APP)
        assert stopped is not None
        assert stopped.reason == ACCOUNT_REFUSED
        assert (fcm.simulator.requests, fcm.outcomes) == (0, {})
        assert CHANNEL_TOKENS.labels("fcm", "refused")._value.get() == refused + 1
        check = await FcmCheck(fcm.service, simulated=True)(App(appkey=APP))
        assert (check.accepted, check.simulated) == (False, True)
        fcm.simulator.accounts.register(ACCOUNT)
        await fcm.advance_until(lambda: len(fcm.outcomes) == 2)
        assert set(fcm.outcomes.values()) == {(SENT, "")}
        said = "".join(capfd.readouterr()) + repr(fcm.outcomes) + str(stopped) + str(check) + repr(ACCOUNT)
    assert "--fcm-service-account FILE" in said
    assert not [word for word in canaries(ACCOUNT.private_key) if word.decode() in said]
    assert "ya29." not in said


async def test_a_project_of_others_stops_the_app() -> None:
    async with running_fcm() as fcm:
        other = new_account("another-1")
        fcm.simulator.accounts.register(other)
        own = ACCOUNT
        fcm.account = type(own)("another-1", own.client_email, own.private_key_id, own.private_key)
        fcm.start(ADDRESS)
        await fcm.until(lambda: fcm.channel.stopped(APP) is not None)
        assert fcm.simulator.refused == {"403 PERMISSION_DENIED": 1}


async def test_a_token_server_that_cannot_be_reached_is_counted() -> None:
    unreachable = CHANNEL_UNREACHABLE.labels("fcm")._value.get
    before, url = unreachable(), f"https://127.0.0.1:{free_ports(1)[0]}"
    server = TokenServer(FcmEndpoint(url, f"{url}/token"), ManualClock(0))
    asking = asyncio.create_task(server.post(url, {}))
    await until_holds(lambda: unreachable() == before + 1)
    await server.close()
    assert unreachable() == before
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_check_sends_nothing_and_says_whether_google_accepts_the_account() -> None:
    async with running_fcm() as fcm:
        check = FcmCheck(fcm.service, simulated=False)
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.simulated) == (True, False)
        assert [received.is_dry for received in fcm.simulator.received] == [True]
        fcm.account = None
        answer = await check(App(appkey=APP))
        assert (answer.accepted, answer.reason) == (False, "the app has no usable service account for FCM")


def test_installation_ids_and_registration_tokens_are_told_apart() -> None:
    assert target_of("cXz1yAPA91bHcXz1yAPA91").is_fid
    assert not target_of("cXz1yAPA91bHcXz1yAPA91:APA91").is_fid
    assert not target_of("xXz1yAPA91bHcXz1yAPA91").is_fid
