"""All webhooks as they are now: each has a lane, a sender, and offsets that outlive the process."""

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
from services.webhooks.lane import LabelledMessages, Lane
from services.webhooks.receivers import Receiver
from services.webhooks.sender import LaneSender, LaneStore
from services.webhooks.settings import ROLE_NAME
from services.webhooks.store import DeliveryAttempt, StoredLane, WebhookStore
from services.webhooks.subscriptions import Subscriptions, WebhookSubscription
from services.webhooks.tokens import DeviceTokens
from services.webhooks.walks import Walks

SAVED_EVERY_MS = 10_000
"""How often the offsets of lanes that have nothing to deliver are stored."""

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
        walks: Walks,
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
        self._walks = walks
        self._thread = WorkerThread(ROLE_NAME)
        self._senders: dict[str, LaneSender] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._saved: dict[str, Mapping[Partition, int]] = {}
        self._beginning: set[str] = set()

        def new_sender(lane: Lane, failing_since_ms: int, paused_ms: int) -> LaneSender:
            of_lane = LaneStore(store, self._thread, lane.id)
            return LaneSender(lane, new_receiver(), tokens, of_lane, keys, clock, jitter, failing_since_ms, paused_ms)

        self._new_sender: Callable[[Lane, int, int], LaneSender] = new_sender

    @property
    def senders(self) -> Mapping[str, LaneSender]:
        """The sender of each lane, by the lane's id; that of a webhook's own lane is the webhook's."""
        return self._senders

    async def run(self, ready: asyncio.Event) -> None:
        WEBHOOKS_FAILING.set_function(lambda: sum(1 for each in self._active() if each.failing_since_ms))
        WEBHOOKS_PAUSED.set_function(lambda: sum(1 for each in self._senders.values() if each.is_paused))
        WEBHOOK_AGE.set_function(self._age_s)
        stored = {lane.lane_id: lane for lane in await self._thread.call(self._store.lanes)}
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

    def sender_of(self, scope: str, webhook_id: str) -> LaneSender:
        """Return the sender of a webhook. NotFoundError: there is none, or the role has not begun with it."""
        sender = self._senders.get(webhook_id)
        if sender is None or sender.lane.subscriber.scope != scope or sender.lane.until is not None:
            raise NotFoundError(Code.WEBHOOK_NOT_KNOWN, scope=scope_text(scope), webhook_id=webhook_id)
        return sender

    def states(self, scope: str) -> list[WebhookState]:
        """Return the state of each webhook of the app or the team."""
        senders = (sender for sender in self._senders.values() if not sender.lane.until)
        return [self._state(sender) for sender in senders if sender.lane.subscriber.scope == scope]

    async def attempts(self, webhook_id: str) -> list[DeliveryAttempt]:
        return await self._thread.call(partial(self._store.attempts, webhook_id))

    async def resend(self, sender: LaneSender, from_ms: int, until_ms: int) -> None:
        """Send the events of a time again. ConflictError: those of another time are being sent again."""
        lane, again = sender.lane, f"{sender.lane.id}/again"
        if again in self._senders or again in self._beginning:
            raise ConflictError("events are being sent again already: wait until that is done")
        self._beginning.add(again)
        try:
            starts = await offsets_at(self._log, self._partitions, from_ms)
            until = await offsets_at(self._log, self._partitions, until_ms)
            await self._thread.call(partial(self._store.add, again, lane.id, starts, until))
            subscription = WebhookSubscription(lane.subscriber, lane.webhook)
            self._begin(subscription, StoredLane(again, lane.id, starts, until, 0, 0))
        finally:
            self._beginning.discard(again)

    def _state(self, sender: LaneSender) -> WebhookState:
        lane = sender.lane
        return WebhookState(
            webhook_id=lane.id,
            failing_since_ms=sender.failing_since_ms,
            paused_ms=sender.paused_ms if sender.is_paused else 0,
            waiting=lane.waiting,
            oldest_ms=lane.oldest_ms or 0,
            is_behind=lane.id not in self._walks.live,
            is_resending=f"{lane.id}/again" in self._senders,
        )

    # --- following the subscriptions

    async def _follow(self, stored: dict[str, StoredLane]) -> None:
        """Begin with new webhooks, use the settings of changed ones, and end the lanes of removed ones.

        `stored`: the lanes that an earlier process left, each of which is taken out as it goes on.
        """
        known = self._subscriptions.all()
        for sender in list(self._senders.values()):
            present = known.get(sender.lane.webhook.webhook_id)
            if present is None:
                await self._forget(sender.lane)
            elif present.webhook is not sender.lane.webhook:
                sender.lane.use(present.webhook)
        for webhook_id in known.keys() - self._senders.keys():
            left = stored.get(webhook_id)
            if left is None:
                starts = await self._first_offsets(known[webhook_id].webhook)
                await self._thread.call(partial(self._store.add, webhook_id, webhook_id, starts, None))
                left = StoredLane(webhook_id, webhook_id, starts, None, 0, 0)
            self._begin(known[webhook_id], await self._within_log(left))
            stored.pop(webhook_id, None)
        for lane_id, left in list(stored.items()):
            if left.webhook_id in known and left.until is not None:
                self._begin(known[left.webhook_id], await self._within_log(left))
            else:
                await self._thread.call(partial(self._store.forget_attempts, left.webhook_id))
                await self._thread.call(partial(self._store.remove, lane_id))
            del stored[lane_id]

    async def _within_log(self, left: StoredLane) -> StoredLane:
        """Return the lane with offsets that the log holds: it may have gone back, or have lost its oldest records.

        A partition may be new to the lane, such as that of a topic which a later release reads.
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

    def _begin(self, subscription: WebhookSubscription, left: StoredLane) -> None:
        """Go on with a lane where it was left."""
        starts = dict(left.starts)
        lane = Lane(left.lane_id, *subscription, starts, self._labelled, left.until)
        sender = self._new_sender(lane, left.failing_since_ms, left.paused_ms)
        self._senders[lane.id] = sender
        self._saved[lane.id] = starts
        self._walks.add(lane)
        if left.until is None:
            self._sending[lane.id] = background.start_lasting(f"webhook {lane.id}", sender.run)
        else:
            self._sending[lane.id] = background.start_lasting(f"webhook {lane.id}", partial(self._send_again, sender))

    async def _send_again(self, sender: LaneSender) -> None:
        """Deliver the events of a lane with an end, and forget the lane."""
        await sender.run()
        self._sending.pop(sender.lane.id, None)
        await self._forget(sender.lane)

    async def _first_offsets(self, webhook: Webhook) -> dict[Partition, int]:
        """Return the offsets from which on a webhook without a lane gets events."""
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

    async def _forget(self, lane: Lane) -> None:
        """End a lane, and forget the attempts if its webhook is gone."""
        await self._walks.remove(lane.id)
        self._senders.pop(lane.id, None)
        self._saved.pop(lane.id, None)
        if (task := self._sending.pop(lane.id, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        if lane.until is None:  # first: after a kill the lane says that there is something to forget
            await self._thread.call(partial(self._store.forget_attempts, lane.id))
        await self._thread.call(partial(self._store.remove, lane.id))

    async def _save(self) -> None:
        """Store the offsets of lanes that have nothing to deliver."""
        for lane_id, sender in list(self._senders.items()):
            saved, delivered = self._saved.get(lane_id), dict(sender.lane.delivered)
            if saved is None:  # forgotten meanwhile
                continue
            if changed := {p: offset for p, offset in delivered.items() if offset != saved.get(p)}:
                await self._thread.call(partial(self._store.commit, lane_id, changed))
                if lane_id in self._saved:
                    self._saved[lane_id] = delivered

    async def _close(self) -> None:
        await self._walks.close()
        for task in self._sending.values():
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending.values())
        with contextlib.suppress(Exception):
            await self._save()
        await asyncio.to_thread(self._thread.shutdown)
        self._store.close()

    def _active(self) -> Iterator[LaneSender]:
        return (each for each in self._senders.values() if not each.is_paused and not each.lane.webhook.disabled)

    def _age_s(self) -> float:
        """Return the age of the oldest event that waits for a receiver that is neither paused nor switched off."""
        oldest = [each.lane.oldest_ms for each in self._active()]
        found = [oldest_ms for oldest_ms in oldest if oldest_ms is not None]
        return max(0.0, (self._clock.now_ms() - min(found)) / 1000) if found else 0.0
