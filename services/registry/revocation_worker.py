"""What revoked keys entail beside the command: registrations removed, doors told what a crash kept from them."""

import asyncio
from collections.abc import Sequence

from services.domain.apps import AppDirectory
from services.domain.meta import stamp
from services.domain.revocations import RevokedKeys
from services.registry.decide_revocations import removed
from services.registry.rules import device_fact, published
from services.registry.store import DeviceTable
from services.runtime.process.clock import Clock
from services.runtime.projection.follower import Fact, Follower

BATCH = 1000
"""Devices that are removed at once; commands get their turn in between."""


class RevocationWorker:
    """A service: removes the devices whose keys are revoked, as long as there are any.

    What is left to do follows from the state alone, so a crash at any point is made good at the next start.
    """

    name = "registry-revocations"

    def __init__(self, follower: Follower, devices: DeviceTable, apps: AppDirectory, clock: Clock) -> None:
        self._follower = follower
        self._devices = devices
        self._apps = apps
        self._clock = clock
        self._next: dict[tuple[str, int], int] = {}
        self._is_done = False
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        """There are new revocations; may be called in any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._news.set)

    async def run(self, ready: asyncio.Event) -> None:
        """The follower must be ready."""
        self._loop = asyncio.get_running_loop()
        await self._follower.write(self._left_by_a_crash)
        ready.set()
        while True:
            self._news.clear()
            self._is_done = False
            while not self._is_done:
                await self._follower.write(self._some_removals)
            await self._news.wait()

    def _left_by_a_crash(self) -> Sequence[Fact]:
        facts = []
        for record in self._devices.revocations():
            revoked = RevokedKeys.of(record)
            if revoked != self._apps.revoked(record.appkey, record.partition):
                facts.append(published(record))
            for number in revoked.others:
                found = self._devices.registered(record.appkey, record.partition, number, number, 1)
                facts += [device_fact(removed(device, record)) for device in found]
        return self._noted(facts)

    def _some_removals(self) -> Sequence[Fact]:
        for record in self._devices.revocations():
            place = record.appkey, record.partition
            first = self._next.get(place, 0)
            if first < record.below:
                found = self._devices.registered(*place, first, record.below - 1, BATCH)
                self._next[place] = found[-1].number + 1 if len(found) == BATCH else record.below
                if found:
                    return self._noted([device_fact(removed(device, record)) for device in found])
        self._is_done = True
        return ()

    def _noted(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        for fact in facts:
            stamp(fact.message.meta, "registry", self._clock.now_ms())
        return facts
