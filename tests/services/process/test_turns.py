"""Slices of work, with turns of the event loop in between for other work."""

import asyncio
from typing import Any

from services.process.turns import SpacedSlices


class Work:
    """Work that wants further slices so often; `turns`: the turn of the event loop of each slice."""

    def __init__(self, wants: int = 0, cost: int = 3) -> None:
        self.slices = SpacedSlices(self)
        self.turns: list[int] = []
        self.turn = 0
        self._wants = wants
        self._cost = cost

    def __call__(self) -> int:
        self.turns.append(self.turn)
        if self._wants:
            self._wants -= 1
            self.slices.request()
        return self._cost

    async def pass_turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.turn += 1


async def test_other_work_has_turns_after_each_slice() -> None:
    work = Work(wants=2)
    work.slices.request()
    await work.pass_turns(20)
    assert work.turns == [0, 4, 8]


async def test_work_that_was_requested_several_times_is_called_once() -> None:
    work = Work()
    work.slices.request()
    work.slices.request()
    await work.pass_turns(20)
    assert work.turns == [0]


async def test_work_that_is_requested_again_waits_until_the_turns_are_over() -> None:
    work = Work()
    work.slices.request()
    await work.pass_turns(2)
    work.slices.request()
    await work.pass_turns(20)
    work.slices.request()
    await work.pass_turns(1)
    assert work.turns == [0, 4, 22]


async def test_work_is_called_again_after_an_error() -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    class Failing(Work):
        def __call__(self) -> int:
            super().__call__()
            raise ValueError

    work = Failing()
    for _ in range(2):
        work.slices.request()
        await work.pass_turns(5)
    assert work.turns == [0, 5]
    assert [type(error["exception"]) for error in errors] == [ValueError, ValueError]
