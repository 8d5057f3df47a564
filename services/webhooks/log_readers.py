"""Readers of the log: the live one for all queues that keep up with it, and a catch-up reader for each that does not.

    catching up ── near the end of the log, and with free capacity ──> live
    live ───────── the queue is full ────────────────────────────────> catching up

A queue passes over records that it has taken, so queues with different offsets share the live reader: when one joins,
the live reader is opened anew at the smaller offset of each partition. A catch-up reader waits while its queue is full,
and ends if that takes long: its events are read again later. The live reader waits for no queue, so a slow receiver
delays no other one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from protos.registry.v1.apps_pb2 import App, AppFact
from services.domain.apps import has_epoch
from services.domain.events import DraftApps, Event, EventTranslator
from services.domain.topics import DRAFTS, decode
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Record, ends_of
from services.process import background
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.dead_letters import UNUSABLE, leave_out
from services.replica.epochs import Epochs, ImpossibleEpochError, check_count, is_announcement
from services.webhooks.event_queue import EventQueue, LabelledMessages, Offsets, WantedKinds
from services.webhooks.settings import ROLE_NAME

NEAR_RECORDS = 2_000
"""Records between a queue and the end of the log, up to which it may join the live reader."""

READ_AT_ONCE = 500

GATHER_S = 0.1
"""Pause of a reader at the end of the log after a read of few records.

So the records of many appends are one read, and their events one request: with 200 appends a second of five outcomes
each, an event takes 100 us of CPU in place of 180.
"""

AT_ONCE = 500
"""Records and events after which a reader lets other tasks run: about 2 ms. In `carillon up` they send pushes."""

IDLE_S = 30.0
"""Time for which a catch-up reader waits while its queue is full: many receivers may be away for days."""

_DRAFTS = Partition(DRAFTS.name, 0)


async def gather_records() -> None:
    """Wait a little, so that the next read has the records of many appends."""
    await asyncio.sleep(GATHER_S)


class LogReaders:
    """The readers of all queues of the process. `close` ends them."""

    def __init__(self, log: Log, partitions: Sequence[Partition], app: Callable[[str], App | None]) -> None:
        self._log = log
        self._partitions = partitions
        self._app = app
        self._drafts = DraftApps(log)
        self._live: dict[str, EventQueue] = {}
        self._position: dict[Partition, int] = {}
        self._live_task: asyncio.Task[None] | None = None
        self._catching_up: dict[str, asyncio.Task[None]] = {}

    @property
    def live(self) -> Iterable[str]:
        """The ids of the queues that share the live reader."""
        return self._live.keys()

    def add(self, queue: EventQueue) -> None:
        """Let the queue take the records from its `taken` on."""
        work = partial(self._catch_up, queue)
        self._catching_up[queue.id] = background.start_lasting(f"webhook {queue.id} behind the log", work)

    async def remove(self, queue_id: str) -> None:
        self._live.pop(queue_id, None)
        if (task := self._catching_up.pop(queue_id, None)) is not None:
            await _end(task)
        if not self._live:
            await self._stop_live()

    async def close(self) -> None:
        for queue_id in [*self._live, *self._catching_up]:
            await self.remove(queue_id)

    async def _stop_live(self) -> None:
        task, self._live_task = self._live_task, None
        if task is not None:
            await _end(task)

    def _start_live(self, position: Offsets) -> None:
        """Open the live reader anew at this position. The cancelled one has handled each record before its own."""
        if self._live_task is not None:
            self._live_task.cancel()
        self._position = dict(position)
        self._live_task = background.start_lasting("webhooks at the end of the log", self._read_live)

    async def _read_live(self) -> None:
        reader = _EventReader(self._log, self._app, self._drafts, self._position)
        await reader.open()
        try:
            while True:
                records = await reader.read()
                for labelled in {queue.labelled for queue in self._live.values()}:
                    await labelled.until_current(partial(self._live_labels, labelled))
                for record in records:
                    self._leave_live(queue for queue in self._live.values() if not queue.knows_labels)
                    await reader.handle(record, self._live.values())
                    self._leave_live(queue for queue in self._live.values() if queue.is_full)
                    if not self._live:  # no queue is left to read for
                        return
                for queue in self._live.values():
                    queue.pass_over(self._position)
                if len(records) < READ_AT_ONCE:
                    await gather_records()
        finally:
            await reader.close()

    def _live_labels(self, labelled: LabelledMessages) -> list[frozenset[str]]:
        return [queue.labels for queue in self._live.values() if queue.labelled is labelled]

    def _leave_live(self, queues: Iterable[EventQueue]) -> None:
        """Give each of these queues a catch-up reader from now on."""
        for queue in list(queues):
            del self._live[queue.id]
            queue.pass_over({p: o for p, o in self._position.items() if o > queue.taken.get(p, 0)})
            self.add(queue)

    async def _catch_up(self, queue: EventQueue) -> None:
        await self._pass_over_trimmed(queue)
        while (position := await self._read_for_one(queue)) is None:
            if not queue.has_capacity.is_set():
                queue.shrink()
            await queue.has_capacity.wait()
        if queue.until is None:
            self._join(queue, position)
        await asyncio.Event().wait()  # until this task is cancelled, by `_join` if the queue has joined

    async def _read_for_one(self, queue: EventQueue) -> Offsets | None:
        """Read for one queue until it may join or has reached its end; return the position. None: it stays full."""
        await queue.labelled.until_known(lambda: queue.labels)
        reader = _EventReader(self._log, self._app, self._drafts, dict(queue.taken))
        await reader.open()
        try:
            while await _has_capacity(queue):  # a full queue may not join, and the next read may wait for long
                if queue.has_taken_all or await self._may_join(queue, reader.position):
                    return reader.position
                records = await reader.read()
                await queue.labelled.until_current(lambda: [queue.labels])
                for record in records:
                    if not await _has_capacity(queue) or not queue.knows_labels:
                        return None
                    await reader.handle(record, [queue])
                queue.pass_over(reader.position)
            return None
        finally:
            await reader.close()

    async def _pass_over_trimmed(self, queue: EventQueue) -> None:
        """Pass over records that the log does not hold any more, as of a receiver that was away for too long."""
        begins = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.begins(self._partitions), role=ROLE_NAME
        )
        if any(queue.taken.get(partition, 0) < begin for partition, begin in begins.items()):
            logger.warning("the log has removed records that a webhook has not read", webhook=queue.id)
            queue.pass_over(begins)

    async def _may_join(self, queue: EventQueue, position: Offsets) -> bool:
        if queue.until is not None or queue.is_full or not queue.knows_labels:
            return False
        ends = await ends_of(self._log, ROLE_NAME, self._partitions)
        return sum(max(0, end - position.get(partition, 0)) for partition, end in ends.items()) <= NEAR_RECORDS

    def _join(self, queue: EventQueue, position: Offsets) -> None:
        now = self._position if self._live else position
        self._live[queue.id] = queue
        self._catching_up.pop(queue.id).cancel()
        self._start_live({p: min(now.get(p, 0), position.get(p, 0)) for p in self._partitions})


class _EventReader:
    """A reader of the log from a position on, which it advances, and the events of what it reads."""

    def __init__(
        self, log: Log, app: Callable[[str], App | None], drafts: DraftApps, position: dict[Partition, int]
    ) -> None:
        self.position = position
        self._log = log
        self._drafts = drafts
        self._translator = EventTranslator(app, drafts)
        self._epochs = EpochsFromOffset()
        self._wanted = WantedKinds()
        self._handled = 0

    async def open(self) -> None:
        await self._drafts.catch_up(self.position.get(_DRAFTS, 0))
        self._reader = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.open(self.position), role=ROLE_NAME
        )

    async def read(self) -> Sequence[Record]:
        return await retry_until_available(LOG_UNAVAILABLE, lambda: self._reader.read(READ_AT_ONCE), role=ROLE_NAME)

    async def handle(self, record: Record, queues: Iterable[EventQueue]) -> None:
        """Put the events of the record into the queues that await it; one record may have 30,000."""
        partition = Partition(record.topic, record.partition)
        awaiting = [queue for queue in queues if queue.awaits(partition, record.offset)]
        events: list[Event] = []
        try:
            message = decode(record)
            is_fenced = not isinstance(message, AppFact) or has_epoch(message)
            counts = record.value and (not is_fenced or self._epochs.admits(record, message))
            for event in self._translator.events(record, message, self._wanted.of(awaiting)) if counts else ():
                events.append(event)
                await self._let_others_run()
        except UNUSABLE as error:
            leave_out(ROLE_NAME, record, error)
            events = []
        for queue in awaiting:
            queue.take(partition, record.offset, events)
        self.position[partition] = record.offset + 1
        await self._let_others_run()

    async def _let_others_run(self) -> None:
        """Let other tasks run now and then; to be called for each record and each event."""
        self._handled += 1
        if self._handled >= AT_ONCE:
            self._handled = 0
            await asyncio.sleep(0)

    async def close(self) -> None:
        await self._reader.close()


class EpochsFromOffset:
    """Which facts count for a reader that begins in the middle of the log, and does not know the epochs before it.

    The first record of a partition may be that of a former owner. So a later one with a higher epoch counts, although
    the reader has not read its announcement, until it has read one; from then on the rules of Epochs hold.
    """

    def __init__(self) -> None:
        self._epochs = Epochs()
        self._announced: set[Partition] = set()

    def admits(self, record: Record, message: Any) -> bool:
        """Return whether the next record of its partition counts. ImpossibleEpochError as for Epochs."""
        partition = Partition(record.topic, record.partition)
        try:
            counts = self._epochs.admits(record, message)
        except ImpossibleEpochError:
            if partition in self._announced:
                raise
            check_count(message.meta.epoch, record.offset)
            self._epochs.note(partition, message.meta.epoch)
            return True
        if counts and is_announcement(message):
            self._announced.add(partition)
        return counts


async def _has_capacity(queue: EventQueue) -> bool:
    """Wait until the queue has free capacity, but not for longer than IDLE_S."""
    if not queue.has_capacity.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await queue.has_capacity.wait()
    return queue.has_capacity.is_set()


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
