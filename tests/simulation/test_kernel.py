"""The kernel of the simulation: the seeded event loop, processes, threads and entropy."""

import asyncio
import os
import random
import secrets
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from services.process.worker_thread import WorkerThread
from tests.simulation.kernel.loop import StuckError
from tests.simulation.kernel.world import World

Result = TypeVar("Result")
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a scenario in the world of a seed; returns its result."""

    def run_one(scenario: Callable[[World], Coroutine[Any, Any, Result]], seed: int = 1, **options: Any) -> Result:
        return World(seed, tmp_path, **options).run(scenario)

    return run_one


async def noisy(world: World) -> str:
    """Start tasks in two processes that wait, draw random bytes and call threads; return the hash of the trace."""

    async def work(number: int) -> None:
        for turn in range(3):
            await asyncio.sleep(0.5 * (number % 2))
            value = await asyncio.to_thread(secrets.randbelow, 1000)
            world.trace.event("turn", number=number, turn=turn, value=value, id=os.urandom(4))

    processes = [world.process("a"), world.process("b")]
    await asyncio.gather(*(processes[number % 2].start(work(number)) for number in range(10)))
    return world.trace.digest


def test_a_seed_determines_the_trace(run: Run) -> None:
    digests = [run(noisy, seed) for seed in (1, 2, 1)]
    assert digests[0] == digests[2] != digests[1]


def test_time_jumps_to_the_next_timer(run: Run) -> None:
    async def scenario(world: World) -> float:
        await asyncio.sleep(86_400)
        return world.loop.time()

    assert 86_400 <= run(scenario) < 86_401


def test_a_world_in_which_nothing_can_happen_is_stuck(run: Run) -> None:
    async def scenario(world: World) -> None:
        await asyncio.Event().wait()

    with pytest.raises(StuckError, match="nothing is left to run"):
        run(scenario)


@pytest.mark.parametrize("fifo", [False, True])
def test_tasks_of_one_process_start_in_order_only_where_the_world_says_so(run: Run, fifo: bool) -> None:
    async def scenario(world: World) -> list[int]:
        started: list[int] = []

        async def note(number: int) -> None:
            started.append(number)

        await asyncio.gather(*(note(number) for number in range(20)))
        return started

    assert (run(scenario, fifo=fifo) == list(range(20))) is fifo


def test_a_killed_process_runs_no_further_code_not_even_finally(run: Run) -> None:
    async def scenario(world: World) -> list[str]:
        ran: list[str] = []

        async def work(name: str, waits: Callable[[], Awaitable[object]]) -> None:
            try:
                ran.append(f"{name} begins")
                await waits()
                ran.append(f"{name} goes on")
            finally:
                ran.append(f"{name} ends")

        killed, other = world.process("killed"), world.process("other")
        killed.start(work("sleeper", lambda: asyncio.sleep(1)))
        killed.start(work("waiter", asyncio.Event().wait))
        killed.start(work("thread", lambda: asyncio.to_thread(ran.append, "in the thread")))
        other_task = other.start(work("other", lambda: asyncio.sleep(2)))
        await asyncio.sleep(0)
        killed.kill()
        await other_task
        return sorted(ran)

    begins = ["other begins", "other ends", "other goes on", "sleeper begins", "thread begins", "waiter begins"]
    assert set(run(scenario)) <= set(begins)


def test_a_process_is_killed_after_a_number_of_steps(run: Run) -> None:
    async def scenario(world: World) -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        process = world.process("counter")
        process.start(count())
        process.kill_after(7)
        await asyncio.sleep(1)
        assert not process.is_alive
        return turns

    assert run(scenario) == 6


def test_a_paused_process_goes_on_later(run: Run) -> None:
    async def scenario(world: World) -> list[float]:
        times: list[float] = []

        async def tick() -> None:
            for _ in range(3):
                await asyncio.sleep(1)
                times.append(round(world.loop.time()))

        process = world.process("paused")
        task = process.start(tick())
        await asyncio.sleep(1.5)
        process.pause(60)
        await task
        return times

    assert run(scenario) == [1, 62, 63]


def test_threads_run_their_calls_in_order_and_a_shutdown_waits_for_them(run: Run) -> None:
    async def scenario(world: World) -> list[int]:
        ran: list[int] = []
        thread = WorkerThread("worker")
        calls = [thread.call(partial(ran.append, number)) for number in range(5)]
        await calls[1]
        assert ran[:2] == [0, 1]
        thread.shutdown()
        assert ran == list(range(5))
        await asyncio.gather(*calls)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return ran

    run(scenario)


def test_a_thread_may_wait_for_the_event_loop(run: Run) -> None:
    async def scenario(world: World) -> tuple[str, float]:
        loop = asyncio.get_running_loop()

        async def answer() -> str:
            await asyncio.sleep(1)
            return "answer"

        def blocking() -> str:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(10), loop).result(0.5)
            return asyncio.run_coroutine_threadsafe(answer(), loop).result(3)

        process = world.process("blocked")
        return await process.start(asyncio.to_thread(blocking)), world.loop.time()

    result, ended_s = run(scenario)
    assert result == "answer"
    assert 1.5 <= ended_s < 1.7


def test_entropy_comes_from_the_seed_and_is_put_back(run: Run) -> None:
    async def draw(world: World) -> list[object]:
        return [os.urandom(8), secrets.token_hex(4), uuid.uuid4(), random.random(), secrets.randbelow(10**9)]

    state = random.getstate()
    first, second, other = run(draw, 1), run(draw, 1), run(draw, 2)
    assert first == second
    assert all(one != another for one, another in zip(first, other, strict=True))
    assert random.getstate() == state
    assert os.urandom(8) != os.urandom(8)


def test_there_are_no_sockets(run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(NotImplementedError):
            await asyncio.open_connection("127.0.0.1", 1)

    run(scenario)
