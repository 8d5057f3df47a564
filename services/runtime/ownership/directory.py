"""Follows the topic `instances`, so that callers find the owner of a shard."""

import asyncio
import contextlib
from collections.abc import Callable

from protos.runtime.v1.instances_pb2 import InstanceFact
from services.runtime.log.port import LOG_UNAVAILABLE, Log, Partition
from services.runtime.ownership.instances import Instance, Instances
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.dead_letters import UNUSABLE, leave_out

INSTANCES_TOPIC = "instances"
_PARTITION = Partition(INSTANCES_TOPIC, 0)

RECENT_RECORDS = 2_000
"""How many of the latest records a start reads. Instances that are present write more at short intervals."""

CALLERS_PAUSE_S = 0.25
"""Pause between two reads of a process that only calls others. All instances write at short intervals: without pauses
the reads of an installation would grow with the square of its processes."""


class InstanceDirectory:
    """The instances by their records in the log. `run` follows the log; the directory is empty before."""

    def __init__(
        self,
        own: str = "",
        on_record: Callable[[InstanceFact, int], None] = lambda fact, offset: None,
        pause_s: float = CALLERS_PAUSE_S,
    ) -> None:
        """`on_record` is called with each record and its offset, once it is applied. `pause_s`: after each read."""
        self.instances = Instances(own)
        self._on_record = on_record
        self._pause_s = pause_s
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._urgent = asyncio.Event()
        self._urgent_waits = 0

    @property
    def change(self) -> asyncio.Event:
        """An event that the next record sets. Get it before asking, then wait for it."""
        return self._changed

    def address(self, role: str, shard: int) -> str | None:
        """Return where the owner of the shard takes calls; None where no owner is known."""
        owner = self.owner(role, shard)
        return owner.alive.address if owner else None

    def owner(self, role: str, shard: int) -> Instance | None:
        return self.instances.owner(role, shard)

    async def run(self, log: Log, on_start: Callable[[], None] = lambda: None) -> None:
        """Follow the log until cancelled; call `on_start` once the reader is open."""
        end = (await retry_until_available(LOG_UNAVAILABLE, lambda: log.ends([_PARTITION])))[_PARTITION]
        start = {_PARTITION: max(0, end - RECENT_RECORDS)}
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: log.open(start))
        try:
            on_start()
            while True:
                for record in await retry_until_available(LOG_UNAVAILABLE, reader.read):
                    try:
                        fact = InstanceFact.FromString(record.value)
                        self.instances.apply(fact, record.offset)
                    except UNUSABLE as error:
                        leave_out(INSTANCES_TOPIC, record, error)
                        continue
                    self._on_record(fact, record.offset)
                self.note_change()
                await _wait(self._urgent, self._pause_s)
        finally:
            await reader.close()

    async def wait_urgently(self, change: asyncio.Event, seconds: float | None = None) -> None:
        """Wait for the change, at most `seconds`; meanwhile records are read without pauses."""
        self._urgent_waits += 1
        self._urgent.set()
        try:
            await _wait(change, seconds)
        finally:
            self._urgent_waits -= 1
            if not self._urgent_waits:
                self._urgent.clear()

    def note_change(self) -> None:
        """Wake those that wait for the next record: `instances` has been changed."""
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever `instances` has been changed."""
        self._listeners.append(listener)


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class OwnerOfShard:
    """The owner of one shard, looked up in a directory. Without a directory the owner is never known."""

    def __init__(self, directory: InstanceDirectory | None, role: str, shard: int) -> None:
        self._directory = directory
        self._role = role
        self.shard = shard

    @property
    def id(self) -> str | None:
        """The id of the instance that owns the shard; None where no owner is known."""
        owner = self._directory.owner(self._role, self.shard) if self._directory else None
        return owner.id if owner else None

    @property
    def address(self) -> str | None:
        """Where the owner takes calls; None where no owner is known."""
        return self._directory.address(self._role, self.shard) if self._directory else None

    async def wait_other(self, known: str | None, *, urgently: bool = False) -> None:
        """Return once an owner is known that is not the instance of this id.

        The wait is urgent, as `wait_urgently` says, if the caller says so or while no owner is known.
        """
        while self._directory is not None:
            change = self._directory.change
            if (owner := self.id) not in (None, known):
                return
            if urgently or owner is None:
                await self._directory.wait_urgently(change)
            else:
                await change.wait()
        await asyncio.Event().wait()
