"""Events reach their receivers: signed, in order, each at least once, with the same ids, whatever a receiver does."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any

import pytest
import standardwebhooks
from standardwebhooks.webhooks import WebhookVerificationError

from protos.registry.v1.apps_pb2 import (
    EVENT_KIND_MESSAGE_FAILED,
    EVENT_KIND_MESSAGE_RECEIVED,
    WEBHOOK_FORM_DINGTALK,
    WEBHOOK_FORM_SLACK,
)
from services.domain.webhooks import new_secret, seal_secret
from services.log.identity import LOG_IDENTITY_FILE
from services.log.port import Partition
from services.webhooks import event_queue, log_readers
from services.webhooks.sender import PAUSED_AFTER_MS
from services.webhooks.store import StoredQueue, WebhookStore
from testkit.waiting import until, until_holds
from testkit.webhook_receiver import (
    Posted,
    WebhookReceiver,
    answering,
    closing,
    garbage,
    half,
    taking_and_closing,
)
from tests.services.webhooks.conftest import APP, OTHER, Installation


def ids_of(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the events, each where it came first."""
    return list(dict.fromkeys(event["id"] for event in events))


def verify(secret: str, posted: Posted, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Verify the signature of a request as its receiver does, at the time of the request."""
    sent_at = datetime.fromtimestamp(int(posted.headers["webhook-timestamp"]), UTC)

    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return sent_at

    monkeypatch.setattr(standardwebhooks.webhooks, "datetime", Then)
    return standardwebhooks.Webhook(secret).verify(posted.body, dict(posted.headers))


async def test_events_arrive_signed_and_name_their_devices(
    installation: Installation, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with installation.running():
        webhook = await installation.subscribe(receiver.url)
        await installation.until_followed(webhook)
        expected = await installation.report(2, partition=1, first_number=99)
        await installation.report(1, appkey=OTHER)
        await receiver.until_events(2)
    (posted,) = receiver.taken
    body = verify(installation.secrets[webhook.webhook_id], posted, monkeypatch)
    assert body["type"] == "batch"
    assert body["data"]["appkey"] == APP
    assert [(event["id"], event["type"], event["data"]) for event in body["data"]["events"]] == [
        (expected[0], "message.received", {"msgid": 7, "token": "token-1-99"}),
        (expected[1], "message.received", {"msgid": 7, "token": None}),
    ]
    with pytest.raises(WebhookVerificationError):
        verify(new_secret(), posted, monkeypatch)
    altered = posted._replace(body=posted.body.replace(b'"msgid":7', b'"msgid":8'))
    with pytest.raises(WebhookVerificationError):
        verify(installation.secrets[webhook.webhook_id], altered, monkeypatch)


async def test_either_secret_verifies_while_one_changes(
    installation: Installation, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with installation.running():
        webhook = await installation.subscribe(receiver.url)
        former, later = installation.secrets[webhook.webhook_id], new_secret()
        changed = await installation.change(
            webhook,
            old_sealed_secret=webhook.sealed_secret,
            old_secret_until_ms=installation.clock.now_ms() + 60_000,
            sealed_secret=seal_secret(later, APP, webhook.webhook_id, installation.keys),
        )
        await installation.until_followed(changed)
        await installation.report(1)
        await receiver.until_events(1)
        for secret in (former, later):
            verify(secret, receiver.taken[0], monkeypatch)
        installation.clock.move(60)
        await installation.report(1)
        await receiver.until_events(2)
        verify(later, receiver.taken[1], monkeypatch)
        with pytest.raises(WebhookVerificationError):
            verify(former, receiver.taken[1], monkeypatch)


@pytest.mark.parametrize(
    "wrong",
    [
        answering(500),
        answering(302, "location: http://127.0.0.1:1/"),
        answering(429, "retry-after: 2"),
        closing,
        half,
        garbage,
        taking_and_closing,
    ],
    ids=["500", "redirects", "429", "closes", "breaks off", "no HTTP", "is killed after taking"],
)
async def test_a_request_that_is_not_taken_is_sent_again_as_it_was(
    installation: Installation, receiver: WebhookReceiver, wrong: Any
) -> None:
    async with installation.running():
        webhook = await installation.subscribe(receiver.url)
        await installation.until_followed(webhook)
        receiver.next = [wrong] * 3
        expected = await installation.report(3)
        await receiver.until_posted(1)
        later = await installation.report(1, partition=1)
        await installation.moving(lambda: len(set(ids_of(receiver.events))) == 4)
    first = receiver.posted[0]
    repeated = [each for each in receiver.posted if each.headers["webhook-id"] == first.headers["webhook-id"]]
    assert len(repeated) >= 4
    assert {each.body for each in repeated} == {first.body}
    assert ids_of(receiver.events) == expected + later


async def test_the_offset_is_committed_after_the_answer_and_a_restart_repeats_what_was_not(
    installation: Installation, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed between the answer and the commit has stored nothing of the batch."""
    with monkeypatch.context() as killed:
        killed.setattr(WebhookStore, "commit", lambda *_: None)
        async with installation.running():
            webhook = await installation.subscribe(receiver.url)
            await installation.until_followed(webhook)
            expected = await installation.report(700)
            await receiver.until_events(700)
    before = receiver.events
    async with installation.running():
        await until_holds(lambda: len(receiver.events) >= 2 * len(before))
        again = receiver.events[len(before) :]
        assert [event["id"] for event in again] == expected
        expected += await installation.report(2)
        await receiver.until_events(702)
        await installation.moving(lambda: offset_of(installation, webhook.webhook_id) == 2, 10)
    count = len(receiver.events)
    async with installation.running():
        expected += await installation.report(1)
        await receiver.until_events(703)
    assert len(receiver.events) == count + 1
    assert ids_of(receiver.events) == expected


def stored_queues(installation: Installation) -> list[StoredQueue]:
    store = WebhookStore(installation.settings.state_dir("webhooks"))
    try:
        return store.queues()
    finally:
        store.close()


def stored_queue(installation: Installation, queue_id: str) -> StoredQueue:
    (stored,) = [each for each in stored_queues(installation) if each.queue_id == queue_id]
    return stored


def offset_of(installation: Installation, queue_id: str) -> int:
    return stored_queue(installation, queue_id).starts[Partition("deliveries", 0)]


async def test_a_receiver_that_is_killed_slow_wrong_and_lying_misses_nothing(
    installation: Installation, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 100 mishaps, with the role started anew, small queues, and events in two partitions."""
    monkeypatch.setattr(event_queue, "MAX_QUEUED", 20)
    monkeypatch.setattr(log_readers, "NEAR_RECORDS", 5)
    random = Random(7)
    mishaps = [answering(500), answering(503, "retry-after: 1"), closing, half, garbage, taking_and_closing]
    expected: dict[int, list[str]] = {0: [], 1: []}
    await installation.subscribe(receiver.url, kinds=[EVENT_KIND_MESSAGE_RECEIVED])
    faults = 0
    for _ in range(6):
        async with installation.running():
            for _ in range(6):
                receiver.next += [random.choice(mishaps) for _ in range(3)]
                faults += 3
                if random.random() < 0.4:
                    await receiver.stop()
                    faults += 1
                for _ in range(4):
                    partition = random.randrange(2)
                    expected[partition] += await installation.report(random.randrange(1, 15), partition=partition)
                if random.random() < 0.5:
                    installation.clock.move(2)
                await receiver.start()
    receiver.next = []
    total = sum(map(len, expected.values()))
    async with installation.running():
        await installation.moving(lambda: len(ids_of(receiver.events)) >= total)
    assert faults > 100
    found = ids_of(receiver.events)
    assert len(found) == total
    for of_partition in expected.values():
        wanted = set(of_partition)
        assert [each for each in found if each in wanted] == of_partition
    by_id: dict[str, str] = {}
    for posted in receiver.posted:
        for event in posted.events:
            assert by_id.setdefault(event["id"], json.dumps(event)) == json.dumps(event)


async def test_a_silent_receiver_delays_no_other(
    installation: Installation,
    receiver: WebhookReceiver,
    other_receiver: WebhookReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_queue, "MAX_QUEUED", 10)
    async with installation.running() as service:
        hostile = await installation.subscribe(receiver.url)
        good = await installation.subscribe(other_receiver.url)
        for webhook in (hostile, good):
            await installation.until_followed(webhook)
        receiver.always = answering(500)
        expected: list[str] = []
        for _ in range(30):
            expected += await installation.report(5)
        await other_receiver.until_events(len(expected))
        queued = service.senders[hostile.webhook_id].queue
        assert len(queued.next_events(1000)) <= 10 + 5
        receiver.always = answering(204)
        await installation.moving(lambda: len(ids_of(receiver.events)) >= len(expected))
    assert ids_of(receiver.events) == ids_of(other_receiver.events) == expected


async def test_a_receiver_that_fails_for_three_days_is_paused_until_somebody_resumes_it(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    receiver.always = answering(500)
    async with installation.running() as service:
        webhook = await installation.subscribe(receiver.url)
        await installation.until_followed(webhook)
        expected = await installation.report(2)
        await receiver.until_posted(1)
        sender = service.senders[webhook.webhook_id]
        begun_ms = installation.clock.now_ms()
        await installation.moving(lambda: sender.is_paused, 6 * 3600)
        assert installation.clock.now_ms() - begun_ms >= PAUSED_AFTER_MS
        await until_holds(lambda: stored_queue(installation, webhook.webhook_id).paused_ms > 0)
    receiver.always, count = answering(204), len(receiver.posted)
    async with installation.running() as service:
        await installation.until_followed(webhook)
        assert service.senders[webhook.webhook_id].is_paused
        expected += await installation.report(1)
        installation.clock.move(3600)
        assert len(receiver.posted) == count
        await installation.change(webhook, resumed_ms=installation.clock.now_ms())
        await receiver.until_events(3)
    assert ids_of(receiver.events) == expected


async def test_gone_pauses_at_once_and_switched_off_waits(
    installation: Installation, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    receiver.always = answering(410)
    async with installation.running() as service:
        gone = await installation.subscribe(receiver.url)
        off = await installation.subscribe(other_receiver.url, disabled=True)
        for webhook in (gone, off):
            await installation.until_followed(webhook)
        expected = await installation.report(2)
        await until_holds(lambda: service.senders[gone.webhook_id].is_paused)
        assert not other_receiver.posted
        await installation.change(off, disabled=False)
        await other_receiver.until_events(2)
    assert len(receiver.posted) == 1
    assert ids_of(other_receiver.events) == expected


async def test_kinds_and_messages_are_chosen(installation: Installation, receiver: WebhookReceiver) -> None:
    async with installation.running():
        await installation.subscribe(receiver.url, kinds=[EVENT_KIND_MESSAGE_FAILED])
        await installation.subscribe(receiver.url, msgids=[8])
        chosen = await installation.subscribe(receiver.url, msgids=[7], kinds=[EVENT_KIND_MESSAGE_RECEIVED])
        await installation.until_followed(chosen)
        expected = await installation.report(3)
        await receiver.until_events(3)
    assert [event["id"] for event in receiver.events] == expected


async def test_what_happened_while_the_role_was_away_arrives_from_the_webhooks_beginning_on(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    await installation.report(5)
    installation.clock.move(1)
    await installation.subscribe(receiver.url)
    expected = await installation.report(2) + await installation.report(2, partition=1)
    async with installation.running():
        await receiver.until_events(4)
    assert sorted(event["id"] for event in receiver.events if event["type"] == "message.received") == sorted(expected)


async def test_an_absent_registry_delays_and_loses_nothing(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    async with installation.running():
        webhook = await installation.subscribe(receiver.url)
        await installation.until_followed(webhook)
        installation.registry.is_away = True
        expected = await installation.report(3)
        await until_holds(lambda: installation.registry.calls > 0)
        assert not receiver.posted
        installation.registry.is_away = False
        await installation.moving(lambda: len(receiver.events) == 3)
        calls = installation.registry.calls
        expected += await installation.report(3)
        await receiver.until_events(6)
        assert installation.registry.calls == calls  # the tokens are known
    assert ids_of(receiver.events) == expected


async def test_chat_services_get_a_text_and_their_refusals_count(
    installation: Installation, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    kinds = [EVENT_KIND_MESSAGE_RECEIVED]
    receiver.next = [answering(200, body=b'{"errcode":310000,"errmsg":"keywords not in content"}')]
    receiver.always = answering(200, body=b'{"errcode":0,"errmsg":"ok"}')
    other_receiver.always = answering(200, body=b"ok")
    async with installation.running():
        ding = await installation.subscribe(receiver.url, form=WEBHOOK_FORM_DINGTALK, kinds=kinds)
        slack = await installation.subscribe(other_receiver.url, form=WEBHOOK_FORM_SLACK, kinds=kinds)
        for webhook in (ding, slack):
            await installation.until_followed(webhook)
        await installation.report(25)
        await installation.moving(lambda: len(receiver.taken) == 2 and len(other_receiver.taken) == 1)
    assert receiver.posted[0].body == receiver.posted[1].body
    text = json.loads(receiver.posted[0].body)["text"]["content"]
    assert json.loads(other_receiver.posted[0].body) == {"text": text}
    assert text.startswith(f"Carillon, app {APP}\n2027-01-15T08:00:00.000Z message.received msgid 7, token token-0-0\n")
    assert text.endswith("\n… and 5 more")
    assert "webhook-signature" not in receiver.posted[0].headers


async def test_private_addresses_are_refused_unless_the_operator_names_them(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    installation.settings = type(installation.settings)(
        data_dir=installation.settings.data_dir, partitions=installation.settings.partitions
    )
    async with installation.running():
        port = receiver.port
        urls = [receiver.url, f"http://localhost:{port}/", "https://localhost/", "https://169.254.169.254/latest"]
        made = [await installation.subscribe(url) for url in urls]
        for webhook in made:
            await installation.until_followed(webhook)
        await installation.report(1)
        attempts = [await until(partial(installation.service.attempts, webhook.webhook_id)) for webhook in made]
    assert not receiver.posted
    answers = [latest for latest, *_ in attempts]
    assert all(attempt.status == 0 and attempt.answer.startswith("refused: ") for attempt in answers), answers


async def test_a_log_that_went_back_or_another_log_stops_no_webhook(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    directory = installation.settings.state_dir("webhooks")
    webhook = await installation.subscribe(receiver.url)
    store = WebhookStore(directory)
    store.add(webhook.webhook_id, webhook.webhook_id, {Partition("deliveries", 0): 50}, None)
    store.close()
    async with installation.running():
        await installation.until_followed(webhook)
        expected = await installation.report(2)
        await receiver.until_events(2)
    (directory / LOG_IDENTITY_FILE).write_text("another")
    async with installation.running():
        expected += await installation.report(1)
        await receiver.until_events(3)
    assert ids_of(receiver.events) == expected


async def test_a_removed_webhook_is_forgotten(installation: Installation, receiver: WebhookReceiver) -> None:
    async with installation.running() as service:
        webhook = await installation.subscribe(receiver.url)
        await installation.until_followed(webhook)
        await installation.report(1)
        await receiver.until_events(1)
        del installation.apps[APP].webhooks[:]
        await installation.write_app(APP)
        await until_holds(lambda: not service.senders)
        await until_holds(lambda: not stored_queues(installation))
        await installation.report(1)
    store = WebhookStore(installation.settings.state_dir("webhooks"))
    assert not store.queues()
    assert not store.attempts(webhook.webhook_id)
    store.close()
    assert len(receiver.events) == 1
