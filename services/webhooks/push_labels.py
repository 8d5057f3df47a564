"""Which messages belong to pushes with the labels that webhooks or streams name, from topic `push-commands`.

Most events name a push by a message id alone. What they tell happened after the push was appended, so a reader of the
log for such a webhook waits, once it has read records, until PushLabels has read the pushes in the log by then.

    unknown ── read up to the end of the log ──> known ── another webhook names the label first ──> unknown
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pyroaring import BitMap64

from services.domain.topics import PUSH_COMMANDS, decode
from services.errors import CarillonError, UnavailableError
from services.log.point_in_time import offsets_at
from services.log.port import LOG_UNAVAILABLE, Log, Partition, Record, ends_of
from services.process import background
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.dead_letters import UNUSABLE, leave_out
from services.replica.snapshot import SnapshotFile
from services.webhooks.settings import ROLE_NAME

MAX_KEPT = 10_000_000
"""Message ids that are kept of a label, a few bytes each; the oldest are forgotten beyond it."""

LOOK_BACK_MS = 24 * 3_600_000
"""How far back pushes with a label are looked for at most, once it is named: the role may have been away."""

SAVED_EVERY_MS = 60_000
SNAPSHOT_VERSION = 1
_RETRY_MS = 10_000
_READ_AT_ONCE = 500
_LOOK_AGAIN_S = 1.0
_PARTITION = Partition(PUSH_COMMANDS.name, 0)


class NamedLabels(Protocol):
    """The labels that webhooks or streams name at present."""

    @property
    def changes(self) -> Sequence[asyncio.Event]:
        """Events of which the next change sets one. Get them before reading."""

    def labels(self) -> Mapping[str, int]:
        """Return the labels, each with the time since which the pushes with it are asked for."""

    def next_change_ms(self) -> int | None:
        """Return when a label is no longer named, if nothing happens before; None: never."""


class PushLabels:
    """Service that reads pushes while a webhook or a stream names a label. Without one it costs nothing.

    `snapshot`: where what it has read outlives the process; None: nowhere.
    """

    name = "webhooks labels of pushes"

    def __init__(self, log: Log, named: NamedLabels, clock: Clock, snapshot: SnapshotFile | None) -> None:
        self._log = log
        self._named = named
        self._clock = clock
        self._snapshot = snapshot
        self._msgids: dict[str, BitMap64] = {}
        self._next = 0
        self._is_restored = False
        self._is_caught_up = False
        self._saved_ms = 0
        self._moved = asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            changes, wanted = self._named.changes, self._named.labels()
            try:
                await self._use(wanted)
            except CarillonError as error:  # pushes go on, whatever becomes of webhooks
                logger.error("the labels of pushes cannot be read at present; it tries again", error=str(error))
                await self._clock.sleep_until(self._clock.now_ms() + _RETRY_MS)
                continue
            following = background.start_lasting(self.name, self._follow) if wanted else None
            try:
                while self._named.labels().keys() == wanted.keys():
                    await wait_for_first(self._clock, self._named.next_change_ms(), *changes)
                    changes = self._named.changes
            finally:
                if following is not None:
                    following.cancel()
                    await asyncio.wait([following])
                    await self._save()

    # --- what readers ask

    def know(self, labels: Collection[str]) -> bool:
        """Return whether the pushes with these labels are known but for the latest."""
        return not labels or (self._is_caught_up and self._msgids.keys() >= set(labels))

    def has(self, labels: Iterable[str], msgid: int) -> bool:
        """Return whether the message belongs to a push with one of the labels."""
        return any(msgid in self._msgids[label] for label in labels if label in self._msgids)

    async def until_known(self, labels: Callable[[], Collection[str]]) -> None:
        """Return once `know` holds for the labels, which may change meanwhile."""
        while not self.know(labels()):
            await self._until_moved()

    async def until_current(self, labels: Callable[[], Iterable[Collection[str]]]) -> None:
        """Return once all pushes that are in the log now were read for those of the sets of labels that are known."""
        if not any(labels()):
            return
        end = (await ends_of(self._log, ROLE_NAME, [_PARTITION]))[_PARTITION]
        while self._next < end and any(each and self.know(each) for each in labels()):
            await self._until_moved()

    async def _until_moved(self) -> None:
        """Wait until more was read; not for long, because what queues ask for may change meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    # --- reading

    async def _use(self, wanted: Mapping[str, int]) -> None:
        """Go on for these labels, each with the time since which it is asked for."""
        if not wanted:
            self._msgids, self._is_restored, self._is_caught_up = {}, False, False
            if self._snapshot is not None:
                self._snapshot.path.unlink(missing_ok=True)
            return
        if not self._is_restored:
            await self._restore()
        self._msgids = {label: self._msgids[label] for label in wanted if label in self._msgids}
        new = wanted.keys() - self._msgids.keys()
        if new:
            self._is_caught_up = False
            since_ms = max(min(wanted[label] for label in new), self._clock.now_ms() - LOOK_BACK_MS)
            start = (await offsets_at(self._log, [_PARTITION], since_ms))[_PARTITION]
            self._next = min(self._next, start) if self._msgids else start
            self._msgids |= {label: BitMap64() for label in new}
            await self._save()  # else a kill before the first save would lose the pushes that were accepted meanwhile
        self._move()

    async def _restore(self) -> None:
        found = await asyncio.to_thread(self._snapshot.load) if self._snapshot is not None else None
        end = (await ends_of(self._log, ROLE_NAME, [_PARTITION]))[_PARTITION]
        if found is not None and found.offsets.get(_PARTITION, 0) <= end:
            self._next = found.offsets.get(_PARTITION, 0)
            self._msgids = {label.decode(): BitMap64.deserialize(packed) for label, packed in found.blobs}
        elif found is not None:
            logger.warning("the log has gone back: labels of earlier pushes are not known", role=ROLE_NAME)
        self._is_restored = True

    async def _follow(self) -> None:
        begins = await retry_until_available(LOG_UNAVAILABLE, lambda: self._log.begins([_PARTITION]), role=ROLE_NAME)
        self._next = max(self._next, begins[_PARTITION])
        end = (await ends_of(self._log, ROLE_NAME, [_PARTITION]))[_PARTITION]
        reader = await retry_until_available(
            LOG_UNAVAILABLE, lambda: self._log.open({_PARTITION: self._next}), role=ROLE_NAME
        )
        try:
            while True:
                if self._next >= end and not self._is_caught_up:
                    self._is_caught_up = True
                    self._move()
                records = await retry_until_available(
                    LOG_UNAVAILABLE, partial(reader.read, _READ_AT_ONCE), role=ROLE_NAME
                )
                await self._take(records)
                if self._clock.now_ms() >= self._saved_ms + SAVED_EVERY_MS:
                    await self._save()
        finally:
            await reader.close()

    async def _take(self, records: Sequence[Record]) -> None:
        for number, record in enumerate(records, 1):
            self._apply(record)
            self._next = record.offset + 1
            if number % 50 == 0:
                await asyncio.sleep(0)  # in `carillon up` other tasks send pushes
        if records:
            self._move()

    def _apply(self, record: Record) -> None:
        try:
            command: Any = decode(record)
        except UNUSABLE as error:
            leave_out(ROLE_NAME, record, error)
            return
        msgids = self._msgids.get(command.send.label)
        if msgids is None:
            return
        first = command.send.msgid
        msgids.add_range(first, first + max(command.send.id_count, 1))
        if len(msgids) > MAX_KEPT:
            msgids.remove_range(0, msgids[len(msgids) - MAX_KEPT])

    async def _save(self) -> None:
        """Save the snapshot. An error is logged: the records behind the former one are read again."""
        self._saved_ms = self._clock.now_ms()
        if self._snapshot is None:
            return
        blobs = [(label.encode(), msgids.serialize()) for label, msgids in self._msgids.items()]
        try:
            await asyncio.to_thread(self._snapshot.save, {_PARTITION: self._next}, blobs)
        except UnavailableError as error:
            logger.error("webhooks could not save a snapshot; it tries again later", error=str(error))


def labels_file(directory: Path) -> SnapshotFile:
    """Return the file of the snapshot in the role's directory."""
    return SnapshotFile(directory / "push-labels.snapshot", SNAPSHOT_VERSION)
