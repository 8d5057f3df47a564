"""Retirement: devices that were silent for CARILLON_DEVICE_DAYS are removed, and come back when they show life.

The decisions are pure functions; `RetirementWorker` finds the devices and writes the facts.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import Device
from services.domain.ids import RecordStamp
from services.domain.recorded_reasons import FixedReason
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.process.metrics import DEVICES_RETIRED, DEVICES_RETURNED, SILENT_SHARE
from services.registry.decide import returned
from services.registry.rules import device_fact
from services.registry.store import DeviceTable
from services.replica.follower import Follower
from services.replica.store import Fact

PAGE = 1000
"""Devices that are looked at in one transaction; commands are decided between two of them."""

PAGE_MS = 1000
"""Time between two pages, so looking at a million devices takes 17 minutes."""

PASS_MS = 6 * 3_600_000
"""Time between two passes."""

DAY_MS = 86_400_000
_PERCENT_A_DAY = 1


def latest_life_ms(device: Device, active_ms: int) -> int:
    """Return when a device last gave a sign of life, given the time of its latest session event (0: there is none)."""
    addresses_ms = (address.since_ms for address in device.addresses)
    return max(active_ms, device.registered_ms, device.registered_again_ms, device.alias_set_ms, *addresses_ms)


def is_silent(device: Device, active_ms: int, before_ms: int) -> bool:
    """Return whether a registered device is to be retired, because its last sign of life was before `before_ms`.

    An iOS token that has never reported anything itself is not: its app may leave all registrations to the app's
    server, and has then no way to show life. Apple says when such a token is gone.
    """
    if device.removed_ms or (device.platform == PLATFORM_IOS and not active_ms):
        return False
    return latest_life_ms(device, active_ms) < before_ms


def retired(device: Device, active_ms: int, now_ms: int) -> Device:
    """Return the device, removed for its silence. Alias, tags and attributes stay in the record for its return."""
    changed = Device()
    changed.CopyFrom(device)
    changed.removed_ms = now_ms
    changed.removed_reason = FixedReason.SILENT
    changed.silent_since_ms = latest_life_ms(device, active_ms)
    return changed


def retirements_left(registered: int, retired_lately: int) -> int:
    """Return how many more devices of an app may be retired now: at most 1 % in 24 hours, but at least one.

    So a clock that is a year ahead, or a log that lacks the latest sessions, does not retire all devices.
    """
    most = -(-(registered + retired_lately) * _PERCENT_A_DAY // 100)
    return max(0, most - retired_lately)


@dataclass
class _Survey:
    """Counts of one pass for an app: devices that are registered, silent, and with a sign of life within a day."""

    registered: int = 0
    silent: int = 0
    lively: int = 0


class RetirementWorker:
    """A service that retires silent devices, and brings back those that show life.

    Each pass looks at all devices, a page at a time: first it counts, then it retires. At most 1 % of an app's devices
    are retired within a day, and none if no device of the app has shown life within a day: then the clock or the state
    must be wrong. All that must survive the process is in the state, so it goes on after a crash at any point; a pass
    begins anew.
    """

    name = "registry retirement"

    def __init__(self, follower: Follower, devices: DeviceTable, clock: Clock, days: int) -> None:
        """`days` of silence after which a device is retired; 0: none is."""
        self._follower = follower
        self._devices = devices
        self._clock = clock
        self._silence_ms = days * DAY_MS
        self._stamp = RecordStamp("registry")
        self._returns = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._surveys: dict[str, _Survey] = {}
        self._page_ends_at = 0
        self._returned_up_to: tuple[str, int, int] | None = None

    def wake(self) -> None:
        """Report that retired devices have shown life. May be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._returns.set)

    async def run(self, ready: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        ready.set()
        while True:
            ended = await self._follower.tenure.wait()
            self._returns.set()
            while not ended.is_set():
                await self.survey_and_retire(ended)
                await self._wait(PASS_MS, ended)

    async def survey_and_retire(self, ended: asyncio.Event) -> None:
        """Make one pass, or stop it where `ended` is set."""
        self._surveys = defaultdict(_Survey)
        if not self._silence_ms:
            return
        await self._for_each_page(self._survey_page, ended)
        for appkey, found in self._surveys.items():
            SILENT_SHARE.labels(appkey).set(found.silent / found.registered)
            if found.silent and not found.lively:
                logger.warning(
                    "no device of an app is retired: none has shown life within a day, so the clock or the state of"
                    " this registry may be wrong, or the app is not in use any more",
                    appkey=appkey,
                    silent=found.silent,
                    registered=found.registered,
                )
        if any(found.silent and found.lively for found in self._surveys.values()):
            await self._for_each_page(self._retire_page, ended)

    async def _for_each_page(self, work: Callable[[], Sequence[Fact]], ended: asyncio.Event) -> None:
        self._page_ends_at = 0
        while not ended.is_set():
            first = self._page_ends_at
            await self._follower.write(work)
            if self._page_ends_at == first:
                return
            await self._wait(PAGE_MS, ended)

    async def _wait(self, duration_ms: int, ended: asyncio.Event) -> None:
        """Wait for the duration, or until the tenure ends; meanwhile bring back the devices that show life."""
        until_ms = self._clock.now_ms() + duration_ms
        while not ended.is_set():
            if self._returns.is_set():
                self._returns.clear()
                self._returned_up_to = None
                while True:
                    before = self._returned_up_to
                    await self._follower.write(self._next_returns)
                    if self._returned_up_to == before:
                        break
            if self._clock.now_ms() >= until_ms:
                return
            await wait_for_first(self._clock, until_ms, self._returns, ended)

    def _survey_page(self) -> Sequence[Fact]:
        now_ms = self._clock.now_ms()
        page = self._devices.page(self._page_ends_at, PAGE, now_ms - self._silence_ms)
        for appkey, active_ms in page.counts:
            self._surveys[appkey].registered += 1
            self._surveys[appkey].lively += abs(now_ms - active_ms) < DAY_MS
        for device, active_ms in page.quiet:
            self._surveys[device.appkey].lively += abs(now_ms - latest_life_ms(device, active_ms)) < DAY_MS
            self._surveys[device.appkey].silent += is_silent(device, active_ms, now_ms - self._silence_ms)
        self._page_ends_at = page.end
        return ()

    def _retire_page(self) -> Sequence[Fact]:
        now_ms = self._clock.now_ms()
        page = self._devices.page(self._page_ends_at, PAGE, now_ms - self._silence_ms)
        self._page_ends_at = page.end
        left: dict[str, int] = {}
        facts = []
        for device, active_ms in page.quiet:
            appkey = device.appkey
            if not self._surveys[appkey].lively or not is_silent(device, active_ms, now_ms - self._silence_ms):
                continue
            if appkey not in left:
                left[appkey] = retirements_left(*self._devices.retirements(appkey, now_ms - DAY_MS))
            if left[appkey] > 0:
                left[appkey] -= 1
                DEVICES_RETIRED.labels(appkey).inc()
                facts.append(device_fact(retired(device, active_ms, now_ms)))
        return self._with_meta(facts)

    def _next_returns(self) -> Sequence[Fact]:
        """Return the facts of the next devices that came back; late sessions of revoked keys bring none back."""
        found = self._devices.returning(self._returned_up_to, PAGE)
        if not found:
            return ()
        self._returned_up_to = found[-1].key
        facts = []
        for silent in found:
            device = self._devices.by_number(*silent.key)
            if device is None or device.number in self._devices.revoked(device.appkey, device.partition):
                continue
            DEVICES_RETURNED.labels(device.appkey).inc()
            facts.append(device_fact(returned(device, silent.active_ms)))
        return self._with_meta(facts)

    def _with_meta(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        for fact in facts:
            self._stamp.complete(fact.message.meta, self._clock.now_ms())
        return facts
