"""The events of one webhook between the log and its receiver: in order, bounded, and committed once delivered."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from protos.registry.v1.apps_pb2 import EventKind, Webhook
from services.domain.events import DRAFT_KINDS, Event
from services.domain.webhooks import KIND_NAMES
from services.log.port import Partition
from services.webhooks.requests import MAX_EVENTS
from services.webhooks.subscriptions import Subscriber

MAX_QUEUED = 5_000
"""Events of a queue from which on it takes no further record; one record may exceed it by its rows."""

Offsets = Mapping[Partition, int]

_ALL_KINDS = frozenset(KIND_NAMES)


class LabelledMessages(Protocol):
    """Knows which messages belong to pushes with labels: PushLabels."""

    def know(self, labels: Collection[str]) -> bool:
        """Return whether the pushes with these labels are known but for the latest."""

    def has(self, labels: Collection[str], msgid: int) -> bool:
        """Return whether the message belongs to a push with one of the labels."""

    async def until_known(self, labels: Callable[[], Collection[str]]) -> None:
        """Return once `know` holds for the labels, which may change meanwhile."""

    async def until_current(self, labels: Callable[[], Iterable[Collection[str]]]) -> None:
        """Return once all pushes that are in the log now were read for those of the sets of labels that are known."""


class QueuedEvent(NamedTuple):
    """An event that waits; `ends`: the offset behind its record, if it is the last one of the record, else None."""

    event: Event
    partition: Partition
    ends: int | None


class EventQueue:
    """Takes the events of one webhook from the log, each once, and hands them out in the order in which they came.

    `taken` has the next offset to take of each partition; records before it are passed over, so a reader may begin at
    smaller offsets. `delivered` has the next offset behind all events that were delivered.
    """

    def __init__(
        self,
        queue_id: str,
        subscriber: Subscriber,
        webhook: Webhook,
        starts: Offsets,
        labelled: LabelledMessages,
        until: Offsets | None = None,
    ) -> None:
        """`labelled`: knows the messages of the labels that the webhook names.

        `until`: the offsets at which the queue ends; None for one that goes on for ever.
        """
        self.labelled = labelled
        self.id = queue_id
        self.subscriber = subscriber
        self.taken = dict(starts)
        self.delivered = dict(starts)
        self.until = until
        self.has_changed = asyncio.Event()
        """Set when events have come, the webhook has changed, or the queue has reached its end."""

        self.has_new_webhook = asyncio.Event()
        self.has_capacity = asyncio.Event()
        self.has_capacity.set()
        self._queue: deque[QueuedEvent] = deque()
        self.use(webhook)

    def use(self, webhook: Webhook) -> None:
        """Use the present settings of the webhook from now on."""
        self.webhook = webhook
        self.kinds = frozenset(webhook.kinds) or _ALL_KINDS
        self._msgids = frozenset(webhook.msgids)
        self.labels = frozenset(webhook.labels)
        self.has_changed.set()
        self.has_new_webhook.set()

    @property
    def is_full(self) -> bool:
        return len(self._queue) >= MAX_QUEUED

    @property
    def knows_labels(self) -> bool:
        """Whether it is known which messages belong to the labels that the webhook names."""
        return self.labelled.know(self.labels)

    @property
    def waiting(self) -> int:
        """How many events wait in the queue."""
        return len(self._queue)

    @property
    def oldest_ms(self) -> int | None:
        """The time of the oldest event that waits."""
        return self._queue[0].event.time_ms if self._queue else None

    @property
    def has_taken_all(self) -> bool:
        """Whether the queue has reached its end, if it has one."""
        ends = self.until
        return ends is not None and all(self.taken.get(partition, 0) >= end for partition, end in ends.items())

    @property
    def is_over(self) -> bool:
        """Whether the queue has reached its end and everything is delivered."""
        return not self._queue and self.has_taken_all

    def awaits(self, partition: Partition, offset: int) -> bool:
        """Return whether the record is one that the queue has not taken."""
        if offset < self.taken.get(partition, 0):
            return False
        return self.until is None or offset < self.until.get(partition, 0)

    def take(self, partition: Partition, offset: int, events: Iterable[Event]) -> None:
        """Take the record that the queue awaits, with those of its events that the webhook wants."""
        self.taken[partition] = offset + 1
        last, appkeys = None, self.subscriber.appkeys()
        for event in events:
            if self._wants(event, appkeys):
                if last is not None:
                    self._queue.append(QueuedEvent(last, partition, None))
                last = event
        if last is not None:
            self._queue.append(QueuedEvent(last, partition, offset + 1))
            self.has_changed.set()
            if self.is_full:
                self.has_capacity.clear()
        elif not self._queue:
            self.delivered[partition] = offset + 1
        if self.has_taken_all:
            self.has_changed.set()

    def _wants(self, event: Event, appkeys: Collection[str]) -> bool:
        if event.kind not in self.kinds or not self._is_chosen(event.msgid):
            return False
        of_team = self.subscriber.team_id
        if event.team_id or (of_team and event.kind in DRAFT_KINDS):
            return event.team_id == of_team
        return event.appkey in appkeys

    def _is_chosen(self, msgid: int) -> bool:
        """Return whether the webhook wants events about the message; 0: what is about no push."""
        if not msgid or not (self._msgids or self.labels) or msgid in self._msgids:
            return True
        return bool(self.labels) and self.labelled.has(self.labels, msgid)

    def pass_over(self, position: Offsets) -> None:
        """Note that nothing before this position is to be taken any more."""
        for partition, offset in position.items():
            self.taken[partition] = max(self.taken.get(partition, 0), offset)
        if not self._queue:
            self.delivered.update(self.taken)
        if self.has_taken_all:
            self.has_changed.set()

    def shrink(self) -> None:
        """Forget the events behind those of the next request: they are taken again. For a full queue.

        `has_capacity` is set once some of the others are delivered.
        """
        kept = 0
        for kept, queued in enumerate(self._queue, 1):
            if kept >= MAX_EVENTS and queued.ends is not None:
                break
        while len(self._queue) > kept:
            queued = self._queue.pop()
            if queued.ends is not None:
                self.taken[queued.partition] = queued.ends - 1

    def next_events(self, most: int) -> Sequence[QueuedEvent]:
        """Return the next events, which stay in the queue until `remove`."""
        return list(islice(self._queue, most))

    def remove(self, count: int) -> dict[Partition, int]:
        """Remove the next events, which were delivered; return the offsets to commit."""
        ends: dict[Partition, int] = {}
        for _ in range(count):
            queued = self._queue.popleft()
            if queued.ends is not None:
                ends[queued.partition] = queued.ends
        if not self._queue:
            ends = {p: offset for p, offset in self.taken.items() if offset > self.delivered.get(p, 0)}
        self.delivered.update(ends)
        if not self.is_full:
            self.has_capacity.set()
        return ends


Wanted = dict[str, frozenset["EventKind.ValueType"]]


class WantedKinds:
    """What `wanted_of` returns for queues, computed again only when a webhook or the apps of a team have changed."""

    def __init__(self) -> None:
        self._known: list[tuple[EventQueue, frozenset[EventKind.ValueType], Collection[str]]] = []
        self._wanted: Wanted = {}

    def of(self, queues: Iterable[EventQueue]) -> Wanted:
        present = [(queue, queue.kinds, queue.subscriber.appkeys()) for queue in queues]
        if present != self._known:
            self._known, self._wanted = present, wanted_of(queue for queue, _, _ in present)
        return self._wanted


def wanted_of(queues: Iterable[EventQueue]) -> Wanted:
    """Return the kinds of events that some of the queues want, by app, or by team for those of a team as a whole."""
    wanted: Wanted = {}
    for queue in queues:
        for scope in {queue.subscriber.scope, *queue.subscriber.appkeys()}:
            wanted[scope] = wanted.get(scope, frozenset()) | queue.kinds
    return wanted
