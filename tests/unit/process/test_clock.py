"""The manual clock and the system's clock."""

import asyncio

from services.runtime.process.clock import ManualClock, SystemClock


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
