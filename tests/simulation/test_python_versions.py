"""A seed gives the same trace with every version of Python: that of a world which waits in every way is stored here."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.simulation.kernel.world import World

DIGESTS = {False: "ddcf95dc2c2dcb3ef7d152d47c139438", True: "49456944bacc19ceea4422ef8a995f99"}
"""The hash of the trace, by whether callbacks of one process run in their order. It changes with the kernel and with
this file alone, never with the version of Python; the service's code does not run in this world."""


class Waiting:
    """Waits in all ways that production code uses, whose steps differ between versions of asyncio or might."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._random = Random(f"{world.seed}/{name}")
        self._queue: asyncio.Queue[int] = asyncio.Queue(2)
        self._changed = asyncio.Event()
        self._turn = asyncio.Semaphore(2)

    async def run(self) -> None:
        ways = (
            self._gathers,
            self._has_time_outs,
            self._groups_tasks,
            self._hands_over,
            self._waits_for_the_first,
            self._calls_threads,
            self._generates,
        )
        for turn in range(3):
            await asyncio.gather(*(self._traced(way.__name__, turn, way()) for way in ways))

    async def _traced(self, way: str, turn: int, work: Coroutine[Any, Any, None]) -> None:
        async with self._turn:
            await work
        self._world.trace.event(
            "waited", process=self._name, way=way, turn=turn, steps=self._world.loop.steps, id=os.urandom(4)
        )

    async def _nap(self) -> float:
        seconds = self._random.choice((0, 0.001, 0.5))
        await asyncio.sleep(seconds)
        return seconds

    async def _fail(self) -> None:
        await self._nap()
        raise ValueError

    async def _gathers(self) -> None:
        loop = asyncio.get_running_loop()
        done, cancelled = loop.create_future(), loop.create_future()
        done.set_result(1)
        cancelled.cancel()
        await asyncio.gather(done)
        await asyncio.gather(done, self._nap(), cancelled, self._fail(), return_exceptions=True)
        with suppress(ValueError):
            await asyncio.gather(self._fail(), self._nap())

    async def _has_time_outs(self) -> None:
        for seconds in (0, 0.0001, 10):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nap(), seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(asyncio.ensure_future(self._nap()))
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), seconds)

    async def _groups_tasks(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(self._nap())
        with suppress(BaseExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._nap())
                group.create_task(self._fail())

    async def _hands_over(self) -> None:
        async def take() -> None:
            for _ in range(4):
                await self._queue.get()
                self._changed.set()

        taking = asyncio.create_task(take())
        for number in range(4):
            await self._queue.put(number)
        await self._changed.wait()
        self._changed.clear()
        await taking

    async def _waits_for_the_first(self) -> None:
        tasks = {asyncio.create_task(self._nap()) for _ in range(4)}
        _, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.wait(tasks, timeout=1)

    async def _calls_threads(self) -> None:
        values = await asyncio.gather(*(asyncio.to_thread(secrets.randbelow, 1000) for _ in range(3)))
        self._world.trace.event("drawn", values=str(values))

    async def _generates(self) -> None:
        async def naps() -> AsyncIterator[float]:
            try:
                while True:
                    yield await self._nap()
            finally:
                await asyncio.sleep(0)

        async for seconds in naps():
            if seconds:
                break


async def waiting_in_every_way(world: World) -> str:
    """Let two processes wait, one of which is paused for a while; return the hash of the trace."""
    processes = [world.process(name) for name in ("a", "b")]
    work = [process.start(Waiting(world, process.name).run()) for process in processes]
    await asyncio.sleep(0.1)
    processes[0].pause(1)
    await asyncio.gather(*work)
    return world.trace.digest


@pytest.mark.parametrize("fifo", [False, True])
def test_a_seed_gives_the_stored_trace_with_this_version_of_python(tmp_path: Path, fifo: bool) -> None:
    world = World(1, tmp_path, fifo=fifo)
    assert world.run(waiting_in_every_way) == DIGESTS[fifo], "".join(world.trace.lines())
    assert world.trace.counts["waited"] == 42
    assert world.errors == []
