"""The manual clock, the system's clock, and the watch for times without the process."""

import asyncio

import pytest
from structlog.testing import capture_logs

from services.errors import UnavailableError
from services.process.clock import HUNG_MS, WARY_MS, HangWatch, ManualClock, SteadyClock, SystemClock
from testkit.services import running_services

_SLEEP = asyncio.sleep


async def test_sleepers_wake_in_the_order_of_their_moments_and_not_before() -> None:
    clock = ManualClock(1_000)
    woken: list[int] = []

    async def sleep(moment_ms: int) -> None:
        await clock.sleep_until(moment_ms)
        woken.append(moment_ms)

    tasks = [asyncio.create_task(sleep(moment)) for moment in (1_300, 1_100, 1_200, 900)]
    await asyncio.sleep(0)
    assert woken == [900]
    clock.move(0.2)
    await asyncio.gather(*tasks[1:3])
    assert (clock.now_ms(), woken) == (1_200, [900, 1_100, 1_200])
    tasks[0].cancel()
    await asyncio.wait(tasks)
    clock.move(1)


def test_a_manual_clock_moves_by_exact_milliseconds() -> None:
    clock = ManualClock(0)
    for _ in range(1000):
        clock.move(1.001)
    assert clock.now_ms() == 1_001_000


async def test_the_machines_clock_returns_at_the_moment_or_later() -> None:
    clock = SystemClock()
    moment = clock.now_ms() + 20
    await clock.sleep_until(moment)
    assert clock.now_ms() >= moment
    await clock.sleep_until(0)


class Host:
    """A host whose clock a test sets, and real time."""

    def __init__(self) -> None:
        self.wall_ms = 1_800_000_000_000.0
        self.elapsed_ms = 5_000.0

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: int(self.wall_ms * 1e6), lambda: int(self.elapsed_ms * 1e6))

    def pass_s(self, seconds: float, drift: float = 0) -> None:
        self.elapsed_ms += seconds * 1000
        self.wall_ms += seconds * 1000 * (1 + drift)


@pytest.mark.parametrize("set_by_s", [3600, -3600, 86_400])
def test_a_host_clock_that_is_set_moves_no_deadline_by_more_than_a_tenth(set_by_s: int) -> None:
    host = Host()
    clock = host.clock()
    begun_ms = clock.now_ms()
    host.wall_ms += set_by_s * 1000
    with capture_logs() as logged:
        assert clock.now_ms() == begun_ms
        host.pass_s(600)
        assert clock.now_ms() - begun_ms == (660_000 if set_by_s > 0 else 540_000)
    assert [entry["seconds"] for entry in logged] == [pytest.approx(set_by_s, abs=1)]
    for _ in range(abs(set_by_s) // 60):
        host.pass_s(600)
        clock.now_ms()
    assert clock.now_ms() == int(host.wall_ms)


def test_the_steady_clock_has_the_hosts_time_while_that_only_drifts() -> None:
    host = Host()
    clock = host.clock()
    for _ in range(1000):
        host.pass_s(1, drift=0.0005)
        assert abs(clock.now_ms() - host.wall_ms) <= 1


def test_a_clock_follows_others_at_once_at_first_and_slowly_later() -> None:
    host = Host()
    clock = host.clock()
    clock.follow(-7_200_000)
    assert clock.now_ms() == int(host.wall_ms) - 7_200_000
    assert clock.host_ms() == int(host.wall_ms)
    clock.follow(0)
    host.pass_s(10)
    assert clock.now_ms() == int(host.wall_ms) - 7_200_000 + 1_000


class StoppableProcess:
    """A process whose time passes while it does not run; the sleepers whose time is over wake when it goes on."""

    def __init__(self) -> None:
        self.time_ms = 0
        self._sleepers: list[tuple[int, asyncio.Event]] = []

    def now_ms(self) -> int:
        return self.time_ms

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.time_ms + int(seconds * 1000), woken))
        await woken.wait()

    async def go_on(self) -> None:
        for moment_ms, woken in self._sleepers:
            if moment_ms <= self.time_ms:
                woken.set()
        for _ in range(3):
            await _SLEEP(0)


@pytest.mark.parametrize("is_asked_first", [True, False])
async def test_a_process_that_has_hung_is_wary_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch, is_asked_first: bool
) -> None:
    """Whether a request is looked at before or after the watch; the first one may come after the hang."""
    process = StoppableProcess()
    monkeypatch.setattr(asyncio, "sleep", process.sleep)
    watch = HangWatch(process.now_ms)
    async with running_services([watch]):
        for _ in range(100):
            process.time_ms += 6_000
            await process.go_on()
        process.time_ms += HUNG_MS + 6_000
        if not is_asked_first:
            await process.go_on()
        with pytest.raises(UnavailableError, match="repeat the request"):
            watch.check()
        await process.go_on()
        process.time_ms += WARY_MS - 1
        await process.go_on()
        with pytest.raises(UnavailableError, match="repeat the request"):
            watch.check()
        process.time_ms += 1
        await process.go_on()
        watch.check()


async def test_a_watch_that_does_not_run_notices_no_hang() -> None:
    process = StoppableProcess()
    watch = HangWatch(process.now_ms)
    process.time_ms += HUNG_MS * 10
    watch.check()
