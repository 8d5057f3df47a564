"""Walks through the log: one for all lanes that keep up with it, and one for each lane that does not.

    behind ── near the end of the log, and with room ──> live
    live ──── its queue is full ───────────────────────> behind

A lane passes over records that it has taken, so lanes with different offsets share a walk: when one joins, the live
walk is opened anew at the smaller offset of each partition. A walk behind waits while its lane is full, and ends if
that takes long: its events are read again later. The live walk waits for no lane, so a slow receiver delays no other
one.
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
from services.webhooks.lane import LabelledMessages, Lane, Offsets, WantedKinds
from services.webhooks.settings import ROLE_NAME

NEAR_RECORDS = 2_000
"""Records between a lane and the end of the log, up to which it may join the live walk."""

READ_AT_ONCE = 500

AT_ONCE = 500
"""Records and events after which a walk lets other tasks run: about 2 ms. In `carillon up` they send pushes."""

IDLE_S = 30.0
"""Time for which a walk behind waits while its lane is full: many receivers may be away for days."""

_DRAFTS = Partition(DRAFTS.name, 0)


class Walks:
    """The walks of all lanes of the process. `close` ends them."""

    def __init__(self, log: Log, partitions: Sequence[Partition], app: Callable[[str], App | None]) -> None:
        self._log = log
        self._partitions = partitions
        self._app = app
        self._drafts = DraftApps(log)
        self._live: dict[str, Lane] = {}
        self._position: dict[Partition, int] = {}
        self._live_task: asyncio.Task[None] | None = None
        self._behind: dict[str, asyncio.Task[None]] = {}

    @property
    def live(self) -> Iterable[str]:
        """The ids of the lanes that share the live walk."""
        return self._live.keys()

    def add(self, lane: Lane) -> None:
        """Let the lane take the records from its `taken` on."""
        work = partial(self._walk_behind, lane)
        self._behind[lane.id] = background.start_lasting(f"webhook {lane.id} behind the log", work)

    async def remove(self, lane_id: str) -> None:
        self._live.pop(lane_id, None)
        if (task := self._behind.pop(lane_id, None)) is not None:
            await _end(task)
        if not self._live:
            await self._stop_live()

    async def close(self) -> None:
        for lane_id in [*self._live, *self._behind]:
            await self.remove(lane_id)

    async def _stop_live(self) -> None:
        task, self._live_task = self._live_task, None
        if task is not None:
            await _end(task)

    def _start_live(self, position: Offsets) -> None:
        """Open the live walk anew at this position. The cancelled walk has handled every record before its own one."""
        if self._live_task is not None:
            self._live_task.cancel()
        self._position = dict(position)
        self._live_task = background.start_lasting("webhooks at the end of the log", self._walk_live)

    async def _walk_live(self) -> None:
        walk = _Walk(self._log, self._app, self._drafts, self._position)
        await walk.open()
        try:
            while True:
                records = await walk.read()
                for labelled in {lane.labelled for lane in self._live.values()}:
                    await labelled.until_current(partial(self._live_labels, labelled))
                for record in records:
                    self._leave_live(lane for lane in self._live.values() if not lane.knows_labels)
                    await walk.handle(record, self._live.values())
                    self._leave_live(lane for lane in self._live.values() if lane.is_full)
                    if not self._live:  # nobody is left to read for
                        return
                for lane in self._live.values():
                    lane.pass_over(self._position)
        finally:
            await walk.close()

    def _live_labels(self, labelled: LabelledMessages) -> list[frozenset[str]]:
        return [lane.labels for lane in self._live.values() if lane.labelled is labelled]

    def _leave_live(self, lanes: Iterable[Lane]) -> None:
        """Let these lanes walk alone from now on."""
        for lane in list(lanes):
            del self._live[lane.id]
            lane.pass_over({p: o for p, o in self._position.items() if o > lane.taken.get(p, 0)})
            self.add(lane)

    async def _walk_behind(self, lane: Lane) -> None:
        await self._pass_over_trimmed(lane)
        while (position := await self._walk_alone(lane)) is None:
            if not lane.has_room.is_set():
                lane.shrink()
            await lane.has_room.wait()
        if lane.until is None:
            self._join(lane, position)
        await asyncio.Event().wait()  # until this task is cancelled, by `_join` if the lane has joined

    async def _walk_alone(self, lane: Lane) -> Offsets | None:
        """Read for one lane until it may join or has reached its end; return the position. None: it stays full."""
        await lane.labelled.until_known(lambda: lane.labels)
        walk = _Walk(self._log, self._app, self._drafts, dict(lane.taken))
        await walk.open()
        try:
            while await _has_room(lane):  # a full lane may not join, and the next read may wait for long
                if lane.has_taken_all or await self._may_join(lane, walk.position):
                    return walk.position
                records = await walk.read()
                await lane.labelled.until_current(lambda: [lane.labels])
                for record in records:
                    if not await _has_room(lane) or not lane.knows_labels:
                        return None
                    await walk.handle(record, [lane])
                lane.pass_over(walk.position)
            return None
        finally:
            await walk.close()

    async def _pass_over_trimmed(self, lane: Lane) -> None:
        """Pass over records that the log does not hold any more, as of a receiver that was away for too long."""
        begins = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.begins(self._partitions), role=ROLE_NAME
        )
        if any(lane.taken.get(partition, 0) < begin for partition, begin in begins.items()):
            logger.warning("the log has removed records that a webhook has not read", webhook=lane.id)
            lane.pass_over(begins)

    async def _may_join(self, lane: Lane, position: Offsets) -> bool:
        if lane.until is not None or lane.is_full or not lane.knows_labels:
            return False
        ends = await ends_of(self._log, ROLE_NAME, self._partitions)
        return sum(max(0, end - position.get(partition, 0)) for partition, end in ends.items()) <= NEAR_RECORDS

    def _join(self, lane: Lane, position: Offsets) -> None:
        now = self._position if self._live else position
        self._live[lane.id] = lane
        self._behind.pop(lane.id).cancel()
        self._start_live({p: min(now.get(p, 0), position.get(p, 0)) for p in self._partitions})


class _Walk:
    """A reader of the log from a position on, which it advances, and the events of what it reads."""

    def __init__(
        self, log: Log, app: Callable[[str], App | None], drafts: DraftApps, position: dict[Partition, int]
    ) -> None:
        self.position = position
        self._log = log
        self._drafts = drafts
        self._translator = EventTranslator(app, drafts)
        self._epochs = WalkEpochs()
        self._wanted = WantedKinds()
        self._handled = 0

    async def open(self) -> None:
        await self._drafts.catch_up(self.position.get(_DRAFTS, 0))
        self._reader = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.open(self.position), role=ROLE_NAME
        )

    async def read(self) -> Sequence[Record]:
        return await retry_until_available(LOG_UNAVAILABLE, lambda: self._reader.read(READ_AT_ONCE), role=ROLE_NAME)

    async def handle(self, record: Record, lanes: Iterable[Lane]) -> None:
        """Put the events of the record into the lanes that await it; one record may have 30,000."""
        partition = Partition(record.topic, record.partition)
        awaiting = [lane for lane in lanes if lane.awaits(partition, record.offset)]
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
        for lane in awaiting:
            lane.take(partition, record.offset, events)
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


class WalkEpochs:
    """Which facts count for a walk that begins in the middle of the log, and does not know the epochs before it.

    The first record of a partition may be that of a former owner. So a later one with a higher epoch counts, although
    the walk has not read its announcement, until it has read one; from then on the rules of Epochs hold.
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


async def _has_room(lane: Lane) -> bool:
    """Wait until the lane has room, but not for longer than IDLE_S."""
    if not lane.has_room.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await lane.has_room.wait()
    return lane.has_room.is_set()


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
