"""The role's calls: states and attempts of webhooks, test events, and events that are sent again."""

import asyncio

import pytest

from protos.webhooks.v1.webhooks_pb2 import (
    ListAttemptsRequest,
    ListStatesRequest,
    ResendRequest,
    SendTestRequest,
    WebhookState,
)
from services.errors import ConflictError, InputError, NotFoundError
from services.webhooks.store import KEPT_ATTEMPTS, DeliveryAttempt, WebhookStore
from testkit.waiting import until_holds
from testkit.webhook_receiver import WebhookReceiver, answering
from tests.services.webhooks.conftest import APP, OTHER, Installation


async def states(installation: Installation) -> list[WebhookState]:
    return list((await installation.stub.ListStates(ListStatesRequest(appkey=APP))).states)


async def test_states_and_attempts_tell_how_a_receiver_does(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    async with installation.running():
        webhook = await installation.subscribe(receiver.url)
        await installation.subscribe(receiver.url, appkey=OTHER)
        await installation.until_followed(webhook)
        (state,) = await states(installation)
        assert state == WebhookState(webhook_id=webhook.webhook_id, is_behind=state.is_behind)
        receiver.next = [answering(500), answering(500)]
        await installation.report(3)
        await receiver.until_posted(1)
        failing_ms = installation.clock.now_ms()

        async def is_failing() -> bool:
            (state,) = await states(installation)
            return (state.failing_since_ms, state.waiting, state.oldest_ms) == (failing_ms, 3, failing_ms)

        await until_holds(lambda: installation.service.senders[webhook.webhook_id].failing_since_ms > 0)
        assert await is_failing()
        await installation.moving(lambda: len(receiver.taken) == 1)
        await until_holds(lambda: not installation.service.senders[webhook.webhook_id].failing_since_ms)
        request = ListAttemptsRequest(appkey=APP, webhook_id=webhook.webhook_id)
        attempts = (await installation.stub.ListAttempts(request)).attempts
        assert [(each.status, each.answer, each.events) for each in attempts] == [
            (204, "HTTP 204", 3),
            (500, "HTTP 500", 3),
            (500, "HTTP 500", 3),
        ]
        assert len({each.message_id for each in attempts}) == 1
        for wrong in (
            ListAttemptsRequest(appkey=OTHER, webhook_id=webhook.webhook_id),
            ListAttemptsRequest(appkey=APP, webhook_id="unknown"),
        ):
            with pytest.raises(NotFoundError, match="has no webhook"):
                await installation.stub.ListAttempts(wrong)


async def test_a_test_event_passes_what_waits_and_changes_nothing(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    async with installation.running():
        webhook = await installation.subscribe(receiver.url, disabled=True)
        await installation.until_followed(webhook)
        await installation.report(2)
        request = SendTestRequest(appkey=APP, webhook_id=webhook.webhook_id)
        answer = await installation.stub.SendTest(request)
        assert (answer.taken, answer.attempt.status, answer.attempt.events) == (True, 204, 1)
        (event,) = receiver.events
        assert (event["type"], event["data"]) == ("webhook.test", {})
        assert "webhook-signature" in receiver.posted[0].headers
        receiver.next = [answering(403)]
        answer = await installation.stub.SendTest(request)
        assert (answer.taken, answer.attempt.answer) == (False, "HTTP 403")
        assert not installation.service.senders[webhook.webhook_id].failing_since_ms
        with pytest.raises(NotFoundError):
            await installation.stub.SendTest(SendTestRequest(appkey=OTHER, webhook_id=webhook.webhook_id))


async def test_the_events_of_a_time_are_sent_again_with_their_ids(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    """Beside present events, and on after a restart."""
    clock = installation.clock
    begun_ms = clock.now_ms()
    async with installation.running():
        webhook = await installation.subscribe(receiver.url)
        await installation.until_followed(webhook)
        sent = []
        for _ in range(4):
            sent.append(await installation.report(2))
            clock.move(3600)
        await receiver.until_events(8)
        receiver.taken.clear()
        hour = ResendRequest(
            appkey=APP, webhook_id=webhook.webhook_id, from_ms=begun_ms + 3_600_000, until_ms=begun_ms + 2 * 3_600_000
        )
        receiver.always = answering(500)
        await installation.stub.Resend(hour)
        with pytest.raises(ConflictError, match="already"):
            await installation.stub.Resend(hour)
        (state,) = await states(installation)
        assert state.is_resending
        posted = len(receiver.posted)
        await receiver.until_posted(posted + 1)
    receiver.always = answering(204)
    async with installation.running():
        present = await installation.report(1)
        await installation.moving(lambda: len(receiver.events) == 3)
        assert sorted(event["id"] for event in receiver.events) == sorted(sent[1] + present)

        async def is_done() -> bool:
            return not (await states(installation))[0].is_resending

        async with asyncio.timeout(10):
            while not await is_done():
                await asyncio.sleep(0.01)
        receiver.taken.clear()
        await installation.stub.Resend(hour)
        await receiver.until_events(2)
    assert [event["id"] for event in receiver.events] == sent[1]


async def test_times_to_send_again_are_bounded(installation: Installation, receiver: WebhookReceiver) -> None:
    async with installation.running():
        webhook = await installation.subscribe(receiver.url)
        await installation.until_followed(webhook)
        now_ms = installation.clock.now_ms()
        for from_ms, until_ms in ((5, 5), (5, 4), (-1, 5), (now_ms, now_ms + 1), (0, now_ms)):
            request = ResendRequest(appkey=APP, webhook_id=webhook.webhook_id, from_ms=from_ms, until_ms=until_ms)
            with pytest.raises(InputError, match="time to send again"):
                await installation.stub.Resend(request)


def test_the_latest_attempts_are_kept(installation: Installation) -> None:
    store = WebhookStore(installation.settings.state_dir("webhooks"))
    for webhook_id in ("a", "b"):
        store.add(webhook_id, webhook_id, {}, None)
    store.commit("b", {}, DeliveryAttempt("other", 0, 1, 1, 204, "HTTP 204"))
    for number in range(KEPT_ATTEMPTS + 5):
        store.commit("a", {}, DeliveryAttempt(f"msg_{number}", number, 1, 1, 204, "HTTP 204"))
    kept = store.attempts("a")
    assert [attempt.time_ms for attempt in kept] == list(range(KEPT_ATTEMPTS + 4, 4, -1))
    assert len(store.attempts("b")) == 1
    store.close()
