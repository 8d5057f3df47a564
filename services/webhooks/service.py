"""All webhooks as they are now: each has a queue, a sender, and offsets that outlive the process."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from protos.registry.v1.apps_pb2 import Webhook
from protos.webhooks.v1.webhooks_pb2 import WebhookState
from services.domain.master_key import Keys
from services.domain.webhooks import scope_text
from services.errors import CarillonError, Code, ConflictError, NotFoundError
from services.log.point_in_time import offsets_at
from services.log.port import LOG_UNAVAILABLE, Log, Partition, ends_of
from services.process import background
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.process.metrics import WEBHOOK_AGE, WEBHOOKS_FAILING, WEBHOOKS_PAUSED
from services.process.retries import retry_until_available
from services.process.worker_thread import WorkerThread
from services.webhooks.event_queue import EventQueue, LabelledMessages
from services.webhooks.log_readers import LogReaders
from services.webhooks.receivers import Receiver
from services.webhooks.sender import QueueStore, WebhookSender
from services.webhooks.settings import ROLE_NAME
from services.webhooks.store import DeliveryAttempt, StoredQueue, WebhookStore
from services.webhooks.subscriptions import Subscriptions, WebhookSubscription
from services.webhooks.tokens import DeviceTokens

SAVED_EVERY_MS = 10_000
"""How often the offsets of queues that have nothing to deliver are stored."""

_PAUSE_S = 0.05
"""Shortest time between two looks at the apps: many may change at once."""

LOST_MS = 3_600_000
"""How far back a webhook begins whose offsets are not known, unless it was made later."""


class WebhookService:
    """Service that delivers the events of apps and teams to their webhooks.

    A webhook gets the events from the moment at which it was made. What happens while it is switched off or paused
    waits in the log.
    """

    name = ROLE_NAME

    def __init__(
        self,
        log: Log,
        partitions: Sequence[Partition],
        subscriptions: Subscriptions,
        readers: LogReaders,
        labelled: LabelledMessages,
        store: WebhookStore,
        new_receiver: Callable[[], Receiver],
        tokens: DeviceTokens,
        keys: Keys,
        clock: Clock,
        jitter: random.Random,
    ) -> None:
        """`partitions`: those of all topics whose records make events."""
        self._log = log
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._labelled = labelled
        self._store = store
        self._keys = keys
        self._clock = clock
        self._readers = readers
        self._thread = WorkerThread(ROLE_NAME)
        self._senders: dict[str, WebhookSender] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._saved: dict[str, Mapping[Partition, int]] = {}
        self._beginning: set[str] = set()

        def new_sender(queue: EventQueue, failing_since_ms: int, paused_ms: int) -> WebhookSender:
            of_queue = QueueStore(store, self._thread, queue.id)
            return WebhookSender(
                queue, new_receiver(), tokens, of_queue, keys, clock, jitter, failing_since_ms, paused_ms
            )

        self._new_sender: Callable[[EventQueue, int, int], WebhookSender] = new_sender

    @property
    def senders(self) -> Mapping[str, WebhookSender]:
        """The sender of each queue, by the queue's id; that of a webhook's own queue is the webhook's."""
        return self._senders

    async def run(self, ready: asyncio.Event) -> None:
        WEBHOOKS_FAILING.set_function(lambda: sum(1 for each in self._active() if each.failing_since_ms))
        WEBHOOKS_PAUSED.set_function(lambda: sum(1 for each in self._senders.values() if each.is_paused))
        WEBHOOK_AGE.set_function(self._age_s)
        stored = {queue.queue_id: queue for queue in await self._thread.call(self._store.queues)}
        ready.set()
        try:
            while True:
                changes = self._subscriptions.changes
                try:
                    await self._follow(stored)
                    await self._save()
                except CarillonError as error:  # pushes go on, whatever becomes of webhooks
                    logger.error("webhooks cannot go on at present; it tries again", error=str(error))
                await wait_for_first(self._clock, self._clock.now_ms() + SAVED_EVERY_MS, *changes)
                await asyncio.sleep(_PAUSE_S)
        finally:
            await self._close()

    # --- calls

    def sender_of(self, scope: str, webhook_id: str) -> WebhookSender:
        """Return the sender of a webhook. NotFoundError: there is none, or the role has not begun with it."""
        sender = self._senders.get(webhook_id)
        if sender is None or sender.queue.subscriber.scope != scope or sender.queue.until is not None:
            raise NotFoundError(Code.WEBHOOK_NOT_KNOWN, scope=scope_text(scope), webhook_id=webhook_id)
        return sender

    def states(self, scope: str) -> list[WebhookState]:
        """Return the state of each webhook of the app or the team."""
        senders = (sender for sender in self._senders.values() if not sender.queue.until)
        return [self._state(sender) for sender in senders if sender.queue.subscriber.scope == scope]

    async def attempts(self, webhook_id: str) -> list[DeliveryAttempt]:
        return await self._thread.call(partial(self._store.attempts, webhook_id))

    async def resend(self, sender: WebhookSender, from_ms: int, until_ms: int) -> None:
        """Send the events of a time again. ConflictError: those of another time are being sent again."""
        queue, again = sender.queue, f"{sender.queue.id}/again"
        if again in self._senders or again in self._beginning:
            raise ConflictError("events are being sent again already: wait until that is done")
        self._beginning.add(again)
        try:
            starts = await offsets_at(self._log, self._partitions, from_ms)
            until = await offsets_at(self._log, self._partitions, until_ms)
            await self._thread.call(partial(self._store.add, again, queue.id, starts, until))
            subscription = WebhookSubscription(queue.subscriber, queue.webhook)
            self._begin(subscription, StoredQueue(again, queue.id, starts, until, 0, 0))
        finally:
            self._beginning.discard(again)

    def _state(self, sender: WebhookSender) -> WebhookState:
        queue = sender.queue
        return WebhookState(
            webhook_id=queue.id,
            failing_since_ms=sender.failing_since_ms,
            paused_ms=sender.paused_ms if sender.is_paused else 0,
            waiting=queue.waiting,
            oldest_ms=queue.oldest_ms or 0,
            is_behind=queue.id not in self._readers.live,
            is_resending=f"{queue.id}/again" in self._senders,
        )

    # --- following the subscriptions

    async def _follow(self, stored: dict[str, StoredQueue]) -> None:
        """Begin with new webhooks, use the settings of changed ones, and end the queues of removed ones.

        `stored`: the queues that an earlier process left, each of which is taken out as it goes on.
        """
        known = self._subscriptions.all()
        for sender in list(self._senders.values()):
            present = known.get(sender.queue.webhook.webhook_id)
            if present is None:
                await self._forget(sender.queue)
            elif present.webhook is not sender.queue.webhook:
                sender.queue.use(present.webhook)
        for webhook_id in known.keys() - self._senders.keys():
            left = stored.get(webhook_id)
            if left is None:
                starts = await self._first_offsets(known[webhook_id].webhook)
                await self._thread.call(partial(self._store.add, webhook_id, webhook_id, starts, None))
                left = StoredQueue(webhook_id, webhook_id, starts, None, 0, 0)
            self._begin(known[webhook_id], await self._within_log(left))
            stored.pop(webhook_id, None)
        for queue_id, left in list(stored.items()):
            if left.webhook_id in known and left.until is not None:
                self._begin(known[left.webhook_id], await self._within_log(left))
            else:
                await self._thread.call(partial(self._store.forget_attempts, left.webhook_id))
                await self._thread.call(partial(self._store.remove, queue_id))
            del stored[queue_id]

    async def _within_log(self, left: StoredQueue) -> StoredQueue:
        """Return the queue with offsets that the log holds: it may have gone back, or have lost its oldest records.

        A partition may be new to the queue, such as that of a topic which a later release reads.
        """
        begins = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.begins(self._partitions), role=ROLE_NAME
        )
        ends = await ends_of(self._log, ROLE_NAME, self._partitions)
        starts = {p: min(max(left.starts.get(p, 0), begins[p]), ends[p]) for p in self._partitions}
        if changed := [partition for partition, start in left.starts.items() if start != starts.get(partition, start)]:
            logger.warning(
                "the log has gone back, or removed records that a webhook has not read: it goes on with what there is",
                webhook=left.webhook_id,
                partitions=len(changed),
            )
        return left._replace(starts=starts)

    def _begin(self, subscription: WebhookSubscription, left: StoredQueue) -> None:
        """Go on with a queue where it was left."""
        starts = dict(left.starts)
        queue = EventQueue(left.queue_id, *subscription, starts, self._labelled, left.until)
        sender = self._new_sender(queue, left.failing_since_ms, left.paused_ms)
        self._senders[queue.id] = sender
        self._saved[queue.id] = starts
        self._readers.add(queue)
        if left.until is None:
            self._sending[queue.id] = background.start_lasting(f"webhook {queue.id}", sender.run)
        else:
            self._sending[queue.id] = background.start_lasting(f"webhook {queue.id}", partial(self._send_again, sender))

    async def _send_again(self, sender: WebhookSender) -> None:
        """Deliver the events of a queue with an end, and forget the queue."""
        await sender.run()
        self._sending.pop(sender.queue.id, None)
        await self._forget(sender.queue)

    async def _first_offsets(self, webhook: Webhook) -> dict[Partition, int]:
        """Return the offsets from which on a webhook without a queue gets events."""
        now_ms = self._clock.now_ms()
        since_ms = max(webhook.created_ms, now_ms - LOST_MS)
        if since_ms > webhook.created_ms:
            logger.warning(
                "a webhook's offsets are not known: it goes on with the events of the last hour; earlier ones can be"
                " sent again with `carillon webhook resend`",
                webhook=webhook.webhook_id,
            )
        return await retry_until_available(
            LOG_UNAVAILABLE, lambda: offsets_at(self._log, self._partitions, since_ms), role=ROLE_NAME
        )

    async def _forget(self, queue: EventQueue) -> None:
        """End a queue, and forget the attempts if its webhook is gone."""
        await self._readers.remove(queue.id)
        self._senders.pop(queue.id, None)
        self._saved.pop(queue.id, None)
        if (task := self._sending.pop(queue.id, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        if queue.until is None:  # first: after a kill the queue says that there is something to forget
            await self._thread.call(partial(self._store.forget_attempts, queue.id))
        await self._thread.call(partial(self._store.remove, queue.id))

    async def _save(self) -> None:
        """Store the offsets of queues that have nothing to deliver."""
        for queue_id, sender in list(self._senders.items()):
            saved, delivered = self._saved.get(queue_id), dict(sender.queue.delivered)
            if saved is None:  # forgotten meanwhile
                continue
            if changed := {p: offset for p, offset in delivered.items() if offset != saved.get(p)}:
                await self._thread.call(partial(self._store.commit, queue_id, changed))
                if queue_id in self._saved:
                    self._saved[queue_id] = delivered

    async def _close(self) -> None:
        await self._readers.close()
        for task in self._sending.values():
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending.values())
        with contextlib.suppress(Exception):
            await self._save()
        await asyncio.to_thread(self._thread.shutdown)
        self._store.close()

    def _active(self) -> Iterator[WebhookSender]:
        return (each for each in self._senders.values() if not each.is_paused and not each.queue.webhook.disabled)

    def _age_s(self) -> float:
        """Return the age of the oldest event that waits for a receiver that is neither paused nor switched off."""
        oldest = [each.queue.oldest_ms for each in self._active()]
        found = [oldest_ms for oldest_ms in oldest if oldest_ms is not None]
        return max(0.0, (self._clock.now_ms() - min(found)) / 1000) if found else 0.0
