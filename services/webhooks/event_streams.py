"""Streams of events for programs that cannot be called: each is a queue that a call reads in place of a receiver."""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

import msgspec
from google.protobuf.message import DecodeError

from protos.registry.v1.apps_pb2 import Webhook
from protos.webhooks.v1.webhooks_pb2 import EventPosition, TopicPosition, WatchEventsRequest, WatchEventsResponse
from services.domain.webhooks import scope_of
from services.errors import BusyError, InputError
from services.log.port import LOG_UNAVAILABLE, Log, Partition, ends_of
from services.process.clock import Clock
from services.process.retries import retry_until_available
from services.webhooks.event_queue import EventQueue, LabelledMessages
from services.webhooks.log_readers import LogReaders
from services.webhooks.requests import MAX_EVENTS
from services.webhooks.settings import ROLE_NAME
from services.webhooks.subscriptions import Subscriptions
from services.webhooks.tokens import DeviceTokens

MAX_STREAMS = 50
"""Streams at a time: the events of each wait in memory until it reads them."""

MAX_STREAMED_LABELS = 1_000
"""Labels that are kept of streams which have ended, the latest."""

MAX_STREAMS_OF_ONE = 10
"""Those of one app or team, so that a team with many tokens leaves some for others."""

KEPT_LABEL_MS = 3_600_000
"""How long the pushes of a label stay known behind the last stream that names it: programs connect again."""

MAX_LABELS = 20
"""Labels that a stream names, as a webhook may."""

MAX_LABEL_LENGTH = 64


class StreamLabels:
    """The labels that streams name, or did within KEPT_LABEL_MS.

    A label that was forgotten since is asked for as of LOOK_BACK_MS ago by a program that goes on at a position.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: Counter[str] = Counter()
        self._since_ms: dict[str, int] = {}
        self._left_ms: dict[str, int] = {}
        self._change = asyncio.Event()

    @property
    def changes(self) -> Sequence[asyncio.Event]:
        """An event that the next change sets. Get it before reading."""
        return (self._change,)

    def labels(self) -> Mapping[str, int]:
        """Return the labels, each with the time since which the pushes with it are asked for."""
        now_ms = self._clock.now_ms()
        for label in [label for label, left_ms in self._left_ms.items() if left_ms + KEPT_LABEL_MS <= now_ms]:
            del self._left_ms[label], self._since_ms[label]
        return dict(self._since_ms)

    def next_change_ms(self) -> int | None:
        """Return when a label is no longer kept, if nothing happens before; None: never."""
        return min(self._left_ms.values()) + KEPT_LABEL_MS if self._left_ms else None

    def enter(self, labels: Collection[str], *, goes_on: bool) -> None:
        """Note a stream that names these labels. `goes_on`: at a position of an earlier stream."""
        self.labels()
        since_ms = 0 if goes_on else self._clock.now_ms()
        for label in labels:
            self._streams[label] += 1
            self._since_ms.setdefault(label, since_ms)
            self._left_ms.pop(label, None)
        self._has_changed()

    def leave(self, labels: Collection[str]) -> None:
        """Note that such a stream has ended."""
        self._streams.subtract(labels)
        for label in [label for label in labels if not self._streams[label]]:
            del self._streams[label]
            self._left_ms[label] = self._clock.now_ms()
        while len(self._left_ms) > MAX_STREAMED_LABELS:
            label = next(iter(self._left_ms))
            del self._left_ms[label], self._since_ms[label]
        self._has_changed()

    def _has_changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


class EventStreams:
    """The streams of the process.

    A program that reads slowly gets a reader of its own, as a slow receiver does: see LogReaders.
    """

    def __init__(
        self,
        log: Log,
        partitions: Sequence[Partition],
        readers: LogReaders,
        tokens: DeviceTokens,
        subscriptions: Subscriptions,
        labels: StreamLabels,
        labelled: LabelledMessages,
    ) -> None:
        """`labelled` knows the messages of `labels`."""
        self._labels = labels
        self._labelled = labelled
        self._log = log
        self._partitions = partitions
        self._readers = readers
        self._tokens = tokens
        self._subscriptions = subscriptions
        self._open: Counter[str] = Counter()

    async def watch(self, request: WatchEventsRequest) -> AsyncGenerator[WatchEventsResponse, None]:
        """Yield the events of an app or a team. BusyError: too many programs watch. InputError: a wrong request."""
        subscriber = self._subscriptions.subscriber(scope_of(request.appkey, request.team_id))
        labels = frozenset(request.labels)
        if len(labels) > MAX_LABELS or not all(0 < len(label) <= MAX_LABEL_LENGTH for label in labels):
            raise InputError(f"label: name at most {MAX_LABELS} labels of 1 to {MAX_LABEL_LENGTH} characters")
        if self._open.total() >= MAX_STREAMS or self._open[subscriber.scope] >= MAX_STREAMS_OF_ONE:
            raise BusyError("too many programs read events at present; try again later")
        self._open[subscriber.scope] += 1
        self._labels.enter(labels, goes_on=bool(request.position))
        queue = None
        try:
            starts = await self._starts(request.position)
            chosen = Webhook(
                webhook_id=f"watch/{secrets.token_hex(8)}", kinds=request.kinds, msgids=request.msgids, labels=labels
            )
            queue = EventQueue(chosen.webhook_id, subscriber, chosen, starts, self._labelled)
            self._readers.add(queue)
            yield WatchEventsResponse(position=self._packed(queue))
            while True:
                await queue.has_changed.wait()
                queue.has_changed.clear()
                while events := await self._next_events(queue):
                    yield WatchEventsResponse(events_json=events, position=self._packed(queue))
        finally:
            self._open[subscriber.scope] -= 1
            self._open += Counter()  # without apps that no program reads
            self._labels.leave(labels)
            if queue is not None:
                await self._readers.remove(queue.id)

    async def _next_events(self, queue: EventQueue) -> list[bytes]:
        queued = queue.next_events(MAX_EVENTS)
        rendered = await self._tokens.rendered([each.event for each in queued], queue.subscriber)
        events = [msgspec.json.encode(each) for each in rendered]
        queue.remove(len(queued))
        return events

    async def _starts(self, position: bytes) -> Mapping[Partition, int]:
        """Return the offsets of a position; the ends of the log where there is none."""
        ends = await ends_of(self._log, ROLE_NAME, self._partitions)
        if not position:
            return ends
        try:
            topics = EventPosition.FromString(position).topics
        except DecodeError:
            raise InputError("position: give what an earlier stream has told, or nothing") from None
        given = {Partition(each.topic, number): next_ for each in topics for number, next_ in enumerate(each.next)}
        if any(given.get(partition, 0) > end for partition, end in ends.items()):
            raise InputError("position: the log does not reach so far, or has gone back; begin without a position")
        begins = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.begins(self._partitions), role=ROLE_NAME
        )
        return {p: max(given.get(p, ends[p]), begins[p]) for p in self._partitions}

    def _packed(self, queue: EventQueue) -> bytes:
        """Return the position behind the events that the queue has handed out."""
        by_topic: dict[str, list[int]] = {}
        for partition in sorted(self._partitions):
            by_topic.setdefault(partition.topic, []).append(queue.delivered.get(partition, 0))
        topics = [TopicPosition(topic=topic, next=offsets) for topic, offsets in by_topic.items()]
        return EventPosition(topics=topics).SerializeToString()
