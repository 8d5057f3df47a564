"""The sender and the simulator over TLS and HTTP/2: requests and results."""

import asyncio
from itertools import pairwise

import pytest

from services.apns_simulator.script import BY_PREFIX, ScriptedAnswer
from services.apns_simulator.server import ApnsSimulator
from services.delivery.channels.apns.request import ApnsResult
from services.delivery.channels.apns.sender import ApnsSender
from services.delivery.channels.http2.sender import _AT_ONCE, _REQUESTS_A_TURN
from services.domain.apns_payload import MAX_PAYLOAD_BYTES
from services.process.clock import ManualClock
from services.push_simulator.connection import Fault
from testkit.delivery.apns import (
    TOKEN,
    TOPIC,
    SubmittedPush,
    make_push,
    make_pushes,
    open_sender,
    running_simulator,
    send,
    send_for_statuses,
)
from testkit.delivery.ios import UNREGISTERED_TOKEN
from testkit.delivery.scripted_tokens import prefix_of, token_with

NOW_MS = 1_800_000_000_000


async def test_a_push_arrives_with_apples_headers(simulator: ApnsSimulator, sender: ApnsSender) -> None:
    assert await send(sender, make_push(collapse_id="c")) == [ApnsResult(200)]

    (received,) = simulator.received
    assert received.token == TOKEN
    assert received.body == {"aps": {"alert": "hi"}}
    apns_id = received.headers["apns-id"]
    assert received.headers == {
        "apns-id": apns_id,
        "apns-topic": TOPIC,
        "apns-push-type": "alert",
        "apns-priority": "10",
        "apns-expiration": "1900000000",
        "apns-collapse-id": "c",
    }


async def test_the_apns_id_depends_on_message_and_device_only(simulator: ApnsSimulator, sender: ApnsSender) -> None:
    await send(sender, make_push(), make_push(), make_push(msgid=8), make_push("cd" * 32))
    ids = [received.headers["apns-id"] for received in simulator.received]
    assert len(set(ids)) == 3


async def test_invalid_pushes_have_apples_reasons(simulator: ApnsSimulator, sender: ApnsSender) -> None:
    batch = [
        make_push(),
        make_push("nothex"),
        make_push(topic=""),
        make_push(payload=b"x" * (MAX_PAYLOAD_BYTES + 1)),
        make_push(payload=b""),
        make_push(),
    ]
    assert await send(sender, *batch) == [
        ApnsResult(200),
        ApnsResult(400, "BadDeviceToken"),
        ApnsResult(400, "MissingTopic"),
        ApnsResult(413, "PayloadTooLarge"),
        ApnsResult(400, "PayloadEmpty"),
        ApnsResult(200),
    ]
    assert simulator.refused == {"BadDeviceToken": 1}


async def test_an_unregistered_token_has_apples_timestamp() -> None:
    clock = ManualClock(NOW_MS)
    async with running_simulator(clock) as simulator, open_sender(simulator, clock) as sender:
        assert await send(sender, make_push(UNREGISTERED_TOKEN)) == [ApnsResult(410, "Unregistered", clock.now_ms())]
        without_reason = make_push(token_with(prefix_of(410)))
        assert await send(sender, without_reason) == [ApnsResult(410, "Unregistered")]
    assert not simulator.received


@pytest.mark.parametrize(("prefix", "answer"), [item for item in BY_PREFIX.items() if item[1].status])
async def test_every_scripted_refusal_is_a_result(
    simulator: ApnsSimulator, sender: ApnsSender, prefix: str, answer: ScriptedAnswer
) -> None:
    (result,) = await send(sender, make_push(token_with(prefix)))
    assert (result.status, result.reason) == (answer.status, answer.reason or "Unregistered")
    if answer.once and answer.status < 500 and answer.status not in (403, 429):
        assert await send_for_statuses(sender, make_push(token_with(prefix))) == [200]


async def test_many_pushes_share_a_connection_beyond_its_flow_control_windows(
    simulator: ApnsSimulator, sender: ApnsSender
) -> None:
    """600 payloads of 4096 bytes and 2000 refusals are many times the initial window of 64 KiB."""
    full = b'{"aps":{"alert":"' + b"x" * (MAX_PAYLOAD_BYTES - 20) + b'"}}'
    assert len(full) == MAX_PAYLOAD_BYTES
    pushes = [make_push(payload=full, msgid=n) for n in range(600)] + [make_push("nothex")] * 2000
    assert await send_for_statuses(sender, *pushes) == [200] * 600 + [400] * 2000
    assert len(simulator.connections) == 1


async def test_other_tasks_run_while_many_requests_are_made(sender: ApnsSender) -> None:
    assert await send_for_statuses(sender, make_push()) == [200]
    made: list[SubmittedPush] = []

    class Noted(SubmittedPush):
        def is_wanted(self) -> bool:
            made.append(self)
            return True

    pushes = [Noted(push) for push in make_pushes([TOKEN] * 4 * _AT_ONCE)]
    for push in pushes:
        sender.submit(push)
    in_turns = []
    while len(made) < len(pushes):
        await asyncio.sleep(0)
        in_turns.append(len(made))
    assert in_turns[0] == _AT_ONCE
    assert all(later - earlier <= _AT_ONCE for earlier, later in pairwise(in_turns))
    made_in = [turn for turn, (earlier, later) in enumerate(pairwise([0, *in_turns])) if later > earlier]
    assert all(later - earlier > _AT_ONCE // _REQUESTS_A_TURN for earlier, later in pairwise(made_in))
    assert await asyncio.gather(*(push.result for push in pushes)) == [ApnsResult(200)] * len(pushes)
    assert made == pushes


async def test_an_unwanted_push_is_skipped(simulator: ApnsSimulator, sender: ApnsSender) -> None:
    push = SubmittedPush(make_push(), wanted=False)
    sender.submit(push)
    assert await push.result is None
    assert not simulator.received


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.GOAWAY_BEFORE, Fault.GOAWAY])
async def test_unprocessed_pushes_are_resent_exactly_once(
    simulator: ApnsSimulator, sender: ApnsSender, fault: Fault
) -> None:
    prefix = prefix_of(0, fault=fault, once=True)
    assert await send_for_statuses(sender, *make_pushes([token_with(prefix, 1)])) == [200]
    tokens = [TOKEN] * 30 + [token_with(prefix)] + [TOKEN] * 30
    assert await send_for_statuses(sender, *make_pushes(tokens)) == [200] * 61
    assert len(simulator.received) == 62


@pytest.mark.parametrize(("fault", "reason"), [(Fault.RESET, "reset: INTERNAL_ERROR"), (Fault.CUT, "connection lost")])
async def test_a_push_that_may_have_been_processed_has_an_unknown_result(
    simulator: ApnsSimulator, sender: ApnsSender, fault: Fault, reason: str
) -> None:
    assert await send_for_statuses(sender, make_push()) == [200]
    (lost,) = await send(sender, make_push(token_with(prefix_of(0, fault=fault)), msgid=8))
    assert lost.is_unknown
    assert reason in lost.reason
    assert await send_for_statuses(sender, make_push(msgid=8)) == [200]
