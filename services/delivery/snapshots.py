"""Saves the state on disk every few minutes and at the stop."""

import asyncio
import contextlib
from functools import partial

from services.delivery.event_writer import EventWriter
from services.delivery.state import serialization
from services.delivery.store import DeliveryStore
from services.runtime.errors import UnavailableError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.worker_thread import WorkerThread
from services.runtime.projection.fencing import SupersededError

_SLICE_BYTES = 64 * 1024
_BLOB_BYTES = 100


class Snapshots:
    """The first service of the role: saves snapshots, as owner and as standby, the last one when all others have ended.

    A state that is just being built from the log is not saved.
    """

    name = "delivery snapshots"

    def __init__(self, store: DeliveryStore, events: EventWriter, clock: Clock, every_s: int) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._every_ms = every_s * 1000
        self._disk = WorkerThread("delivery-snapshot")

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + self._every_ms)
                await self._save_or_log()
        finally:
            with contextlib.suppress(SupersededError):  # the state holds starts that count nowhere
                await self.save()
            self._disk.shutdown()

    async def save(self) -> None:
        """Write a snapshot: the offsets of now, and blobs taken in slices, between which other tasks run.

        It holds no start that the log does not have: a restarted process writes such a start once more.
        """
        async with self._store.building:
            if not self._store.is_built:
                return
            offsets, marks, blobs, slice_bytes = dict(self._store.reached), self._store.marks(), [], 0
            for key, value in serialization.dump(self._store.state):
                blobs.append((key, value))
                slice_bytes += len(value) + _BLOB_BYTES
                if slice_bytes >= _SLICE_BYTES:
                    slice_bytes = 0
                    await asyncio.sleep(0)
        await self._events.write_starts()
        await self._disk.call(partial(self._store.file.save, offsets, blobs, marks))

    async def _save_or_log(self) -> None:
        try:
            await self.save()
        except UnavailableError as error:
            logger.error("delivery could not save a snapshot; it tries again later", error=str(error))
