"""Delivers a queue's events: one request at a time, again until it is taken, and the pause of a receiver that fails."""

import random
from collections.abc import Callable

from protos.registry.v1.apps_pb2 import WebhookForm
from services.domain.events import timestamp
from services.domain.master_key import Keys
from services.domain.push_endpoints import Endpoint
from services.domain.webhooks import secrets_in_force, shown_url
from services.errors import CarillonError
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.process.metrics import WEBHOOK_EVENTS, WEBHOOK_REQUESTS
from services.process.retries import retry_until_available
from services.process.worker_thread import WorkerThread
from services.webhooks.event_queue import EventQueue
from services.webhooks.receivers import GONE, Receiver, ReceiverAnswer
from services.webhooks.requests import MAX_EVENTS, Batch, http_request, is_chat, make_batch
from services.webhooks.settings import ROLE_NAME
from services.webhooks.store import DeliveryAttempt, WebhookStore
from services.webhooks.tokens import DeviceTokens

FIRST_DELAY_MS = 1_000
MAX_DELAY_MS = 15 * 60_000
"""Longest pause between two attempts, unless the receiver asks for a longer one."""

MAX_PROBLEM_DELAY_MS = 30_000
"""Longest pause while a request cannot be made, because the registry does not answer or a key is missing."""

PAUSED_AFTER_MS = 3 * 86_400_000
"""Time for which a receiver may fail before its webhook is paused."""

_NOT_STORED = "the state of webhooks cannot be written"


class QueueStore:
    """The store as one queue uses it: from the event loop, and again until the disk takes it."""

    def __init__(self, store: WebhookStore, thread: WorkerThread, queue_id: str) -> None:
        self._store = store
        self._thread = thread
        self._queue_id = queue_id

    async def commit(self, queue: EventQueue, removed: int, attempt: DeliveryAttempt) -> None:
        """Remove the delivered events from the queue, and store the offsets behind them."""
        offsets = queue.remove(removed)
        await self._run(lambda: self._store.commit(self._queue_id, offsets, attempt))

    async def note_failure(self, failing_since_ms: int, paused_ms: int, attempt: DeliveryAttempt | None = None) -> None:
        await self._run(lambda: self._store.note_failure(self._queue_id, failing_since_ms, paused_ms, attempt))

    async def _run(self, change: Callable[[], None]) -> None:
        await retry_until_available(_NOT_STORED, lambda: self._thread.call(change), role=ROLE_NAME)


class WebhookSender:
    """Delivers the events of one queue in order. `failing_since_ms`, `paused_ms`: as the store has them."""

    def __init__(
        self,
        queue: EventQueue,
        receiver: Receiver,
        tokens: DeviceTokens,
        store: QueueStore,
        keys: Keys,
        clock: Clock,
        jitter: random.Random,
        failing_since_ms: int = 0,
        paused_ms: int = 0,
    ) -> None:
        self.queue = queue
        self.failing_since_ms = failing_since_ms
        self.paused_ms = paused_ms
        self._receiver = receiver
        self._tokens = tokens
        self._store = store
        self._keys = keys
        self._clock = clock
        self._jitter = jitter
        self._failures = 0
        self._problems = 0
        self._batch: tuple[WebhookForm.ValueType, Batch] | None = None

    @property
    def is_paused(self) -> bool:
        """Whether the receiver has failed for too long, and nobody has said since that it is to go on."""
        return self.paused_ms > self.queue.webhook.resumed_ms

    async def run(self) -> None:
        """Deliver what comes; return once the queue is over."""
        try:
            while not self.queue.is_over:
                self.queue.has_changed.clear()
                self.queue.has_new_webhook.clear()
                if self.queue.webhook.disabled or self.is_paused or not self.queue.next_events(1):
                    await self.queue.has_changed.wait()
                elif (delay_ms := await self._attempt()) > 0:
                    due_ms = self._clock.now_ms() + delay_ms
                    await wait_for_first(self._clock, due_ms, self.queue.has_new_webhook)
        finally:
            self._receiver.close()

    async def send_test(self, receiver: Receiver, event_id: str) -> tuple[DeliveryAttempt, bool]:
        """Send a test event over a connection of its own; return what became of it, and whether it was taken.

        CarillonError: its secret was sealed with another master key.
        """
        now_ms, webhook = self._clock.now_ms(), self.queue.webhook
        event = {"id": event_id, "type": "webhook.test", "timestamp": timestamp(now_ms), "data": {}}
        batch = make_batch(webhook.form, self.queue.subscriber, [event], now_ms)
        secrets = self._secrets(now_ms)
        try:
            answer = await receiver.post(
                webhook.url, webhook.form, lambda endpoint: http_request(endpoint, batch, secrets, now_ms)
            )
        finally:
            receiver.close()
        took_ms = self._clock.now_ms() - now_ms
        return DeliveryAttempt(batch.message_id, now_ms, took_ms, 1, answer.status, answer.reason), answer.is_taken

    def _secrets(self, now_ms: int) -> list[str]:
        """Return the secrets that sign requests; none for a chat service."""
        webhook, scope = self.queue.webhook, self.queue.subscriber.scope
        return [] if is_chat(webhook.form) else secrets_in_force(webhook, scope, self._keys, now_ms)

    async def _attempt(self) -> int:
        """Send the next events; return after how many milliseconds to go on."""
        try:
            batch = await self._next_batch()
            webhook, now_ms = self.queue.webhook, self._clock.now_ms()
            secrets = self._secrets(now_ms)
        except CarillonError as error:
            logger.warning("a webhook's request cannot be made yet", webhook=self.queue.id, error=str(error))
            self._problems += 1
            return min(FIRST_DELAY_MS << min(self._problems - 1, 20), MAX_PROBLEM_DELAY_MS)
        self._problems = 0

        def request(endpoint: Endpoint) -> bytes:
            return http_request(endpoint, batch, secrets, now_ms)

        answer = await self._receiver.post(webhook.url, webhook.form, request)
        took_ms = self._clock.now_ms() - now_ms
        WEBHOOK_REQUESTS.labels(f"{answer.status // 100}xx" if answer.status else "none").inc()
        attempt = DeliveryAttempt(batch.message_id, now_ms, took_ms, batch.events, answer.status, answer.reason)
        if not answer.is_taken:
            return await self._failed(answer, attempt)
        self._batch, self._failures, self.failing_since_ms, self.paused_ms = None, 0, 0, 0
        WEBHOOK_EVENTS.inc(batch.events)
        await self._store.commit(self.queue, batch.events, attempt)
        return 0

    async def _next_batch(self) -> Batch:
        """Return the request that is to be sent again, or one with the next events."""
        queue, form = self.queue, self.queue.webhook.form
        if self._batch is None or self._batch[0] != form:
            events = [queued.event for queued in queue.next_events(MAX_EVENTS)]
            rendered = await self._tokens.rendered(events, queue.subscriber)
            self._batch = form, make_batch(form, queue.subscriber, rendered, self._clock.now_ms())
        return self._batch[1]

    async def _failed(self, answer: ReceiverAnswer, attempt: DeliveryAttempt) -> int:
        """Note a failure; return the delay before the next attempt."""
        now_ms, webhook = self._clock.now_ms(), self.queue.webhook
        if not self.failing_since_ms or self.failing_since_ms <= webhook.resumed_ms:
            self.failing_since_ms = max(now_ms, webhook.resumed_ms + 1)
        is_given_up = answer.status == GONE or now_ms - self.failing_since_ms >= PAUSED_AFTER_MS
        if is_given_up:
            self.paused_ms = max(now_ms, webhook.resumed_ms + 1)
            self._failures = 0
        await self._store.note_failure(self.failing_since_ms, self.paused_ms, attempt)
        (logger.error if is_given_up else logger.warning)(
            "a webhook is paused: its receiver has failed for too long; `carillon webhook resume` goes on"
            if is_given_up
            else "a webhook's receiver did not take a request; it is sent again",
            webhook=self.queue.id,
            of=self.queue.subscriber.scope,
            host=shown_url(webhook.url),
            answer=answer.reason,
        )
        self._failures += 1
        delay_ms = min(FIRST_DELAY_MS << min(self._failures - 1, 20), MAX_DELAY_MS)
        return max(round(delay_ms * self._jitter.uniform(0.75, 1.25)), answer.retry_after_ms)
