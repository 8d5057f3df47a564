"""Removes the devices whose keys were revoked, and completes what a crash interrupted: revocations, and changes of
attributes."""

import asyncio
from collections.abc import Callable, Sequence

from services.domain.apps import AppDirectory
from services.domain.ids import RecordStamp
from services.domain.revocations import RevokedKeys
from services.process.clock import Clock
from services.registry.decide import removed
from services.registry.rules import device_fact, published_revocations
from services.registry.store import DeviceTable
from services.replica.follower import Follower
from services.replica.store import Fact

BATCH = 1000
"""Devices that are removed in one transaction; commands are decided between two of them."""


class RevocationWorker:
    """A service that removes the devices whose keys are revoked.

    The remaining work follows from the state alone, so the next start resumes it after a crash at any point.
    """

    name = "registry revocations"

    def __init__(
        self,
        follower: Follower,
        devices: DeviceTable,
        apps: AppDirectory,
        clock: Clock,
        interrupted_changes: Callable[[], Sequence[Fact]] = tuple,
    ) -> None:
        """`interrupted_changes` returns the facts of changes that the log may lack; called in the follower's thread."""
        self._interrupted_changes = interrupted_changes
        self._follower = follower
        self._devices = devices
        self._apps = apps
        self._clock = clock
        self._stamp = RecordStamp("registry")
        self._next: dict[tuple[str, int], int] = {}
        self._published: set[str] = set()
        self._is_idle = False
        self._wake_up = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        """Report that there are new revocations. May be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake_up.set)

    async def run(self, ready: asyncio.Event) -> None:
        """Run after the device follower is ready; work while it owns its partitions."""
        self._loop = asyncio.get_running_loop()
        self._apps.on_revoked(self._note_published)
        if self._follower.tenure.election:
            ready.set()
        while True:
            ended = await self._follower.tenure.wait()
            self._next.clear()
            await self._follower.write(self._interrupted_revocations)
            await self._follower.write(self._interrupted_changes)
            ready.set()
            while not ended.is_set():
                self._wake_up.clear()
                self._is_idle = False
                await self._publish_again()
                while not self._is_idle:
                    await self._follower.write(self._next_removals)
                await self._until_woken(ended)

    def _note_published(self, appkey: str) -> None:
        self._published.add(appkey)
        self._wake_up.set()

    async def _publish_again(self) -> None:
        """Write again the facts of topic `apps` that a former owner's late facts have replaced."""
        published, self._published = self._published, set()
        if published:
            await self._follower.write(lambda: self._with_meta(self._unpublished(published.__contains__)))

    async def _until_woken(self, ended: asyncio.Event) -> None:
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._wake_up, ended)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _interrupted_revocations(self) -> Sequence[Fact]:
        facts = self._unpublished(lambda appkey: True)
        for record in self._devices.revocations():
            revoked = RevokedKeys.of(record)
            for first, last in revoked.runs():
                found = self._devices.registered(record.appkey, record.partition, first, last, last - first + 1)
                facts += [device_fact(removed(device, record)) for device in found]
        return self._with_meta(facts)

    def _unpublished(self, concerns: Callable[[str], bool]) -> list[Fact]:
        """Return the facts of topic `apps` that a crash prevented, or that a former owner's late facts replaced."""
        return [
            published_revocations(record)
            for record in self._devices.revocations()
            if concerns(record.appkey)
            and RevokedKeys.of(record) != self._apps.published(record.appkey, record.partition)
        ]

    def _next_removals(self) -> Sequence[Fact]:
        for record in self._devices.revocations():
            key = record.appkey, record.partition
            first = self._next.get(key, 0)
            if first < record.below:
                found = self._devices.registered(*key, first, record.below - 1, BATCH)
                self._next[key] = found[-1].number + 1 if len(found) == BATCH else record.below
                if found:
                    return self._with_meta([device_fact(removed(device, record)) for device in found])
        self._is_idle = True
        return ()

    def _with_meta(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        for fact in facts:
            self._stamp.complete(fact.message.meta, self._clock.now_ms())
        return facts
