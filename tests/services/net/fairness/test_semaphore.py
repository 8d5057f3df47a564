"""FairSemaphore: which waiting caller gets the next free slot."""

import asyncio
import gc

import pytest

from services.errors import BusyError
from services.net.fairness import WINDOW_MS, FairSemaphore, KeyActivity, Throttle
from services.process.clock import ManualClock


async def steps() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Callers:
    """Callers that note their entering and hold their slot until they are released. A name's first letter is its key.

    Each call and each release leaves time for what follows from it.
    """

    def __init__(
        self, slots: int, beside_others: int | None = None, max_waiting: float = 10, rest: float = 0, active: str = "xy"
    ) -> None:
        self.clock = ManualClock(0)
        self.activity = KeyActivity(self.clock.now_ms)
        for key in active:
            self.activity.seen(key)
        throttle = Throttle(self.clock, self.activity, beside_others or slots, rest)
        self.semaphore = FairSemaphore("requests", slots, max_waiting=max_waiting, throttle=throttle)
        self.entered: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._released: dict[str, asyncio.Event] = {}

    async def call(self, *names: str, size: float = 1) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._run(name, size))
            await steps()

    async def release(self, *names: str) -> None:
        for name in names:
            self._released[name].set()
            await steps()

    async def release_in_turn(self) -> None:
        for at in range(len(self.tasks)):
            await self.release(self.entered[at])
        await asyncio.gather(*self.tasks.values())

    async def _run(self, name: str, size: float) -> None:
        async with self.semaphore.slot(name[0], size):
            self.entered.append(name)
            self._released[name] = asyncio.Event()
            await self._released[name].wait()


async def test_waiting_keys_enter_in_turn() -> None:
    callers = Callers(slots=1)
    await callers.call("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    await callers.release_in_turn()
    assert callers.entered == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_beside_others_a_key_holds_no_more_than_its_slots() -> None:
    callers = Callers(slots=3, beside_others=2)
    await callers.call("a1", "a2", "a3", "a4")
    assert callers.entered == ["a1", "a2"]
    await callers.call("b1")
    assert callers.entered == ["a1", "a2", "b1"]
    await callers.release_in_turn()
    assert callers.entered == ["a1", "a2", "b1", "a3", "a4"]


async def test_alone_a_key_may_hold_all_slots_until_another_is_active() -> None:
    callers = Callers(slots=3, beside_others=1, active="a")
    await callers.call("a1", "a2", "a3", "a4")
    assert callers.entered == ["a1", "a2", "a3"]
    callers.activity.seen("b")
    await callers.release("a1", "a2")
    assert callers.entered == ["a1", "a2", "a3"]
    callers.clock.move(WINDOW_MS / 1000)
    await callers.call("a5")
    assert sorted(callers.entered) == ["a1", "a2", "a3", "a4", "a5"]


async def test_beside_others_a_key_rests_as_long_as_it_worked() -> None:
    callers = Callers(slots=2, beside_others=1, rest=1)
    await callers.call("a1", "a2")
    callers.clock.move(0.3)
    await callers.release("a1")
    callers.clock.move(0.299)
    await callers.call("b1")
    assert callers.entered == ["a1", "b1"]
    callers.clock.move(0.001)
    await steps()
    assert callers.entered == ["a1", "b1", "a2"]


async def test_alone_a_key_does_not_rest() -> None:
    callers = Callers(slots=1, rest=1, active="a")
    await callers.call("a1", "a2")
    callers.clock.move(0.3)
    await callers.release("a1")
    assert callers.entered == ["a1", "a2"]


async def test_a_rest_is_bounded() -> None:
    callers = Callers(slots=1, rest=1)
    await callers.call("a1", "a2")
    callers.clock.move(9)
    await callers.release("a1")
    callers.clock.move(2)
    await steps()
    assert callers.entered == ["a1", "a2"]


async def test_too_much_of_one_key_is_refused_and_another_key_is_not() -> None:
    callers = Callers(slots=1, max_waiting=2)
    await callers.call("a1", "a2", "a3", "a4", "b1")
    with pytest.raises(BusyError, match="too many requests wait already"):
        await callers.tasks.pop("a4")
    await callers.call("c1", size=50)
    await callers.release_in_turn()
    assert sorted(callers.entered) == ["a1", "a2", "a3", "b1", "c1"]


async def test_a_caller_that_leaves_while_it_waits_takes_no_slot() -> None:
    callers = Callers(slots=1)
    await callers.call("a1", "a2", "b1")
    callers.tasks.pop("a2").cancel()
    await steps()
    await callers.release_in_turn()
    assert callers.entered == ["a1", "b1"]
    await callers.call("c1")
    assert callers.entered[-1] == "c1"


async def test_a_caller_cancelled_just_when_admitted_gives_its_slot_back() -> None:
    callers = Callers(slots=1)
    slot = await callers.semaphore.acquire("a")
    waiting = asyncio.create_task(callers.semaphore.acquire("b"))
    await steps()
    slot.release()
    slot.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await callers.call("c1", "c2")
    assert callers.entered == ["c1"]


async def test_an_error_gives_the_slot_back() -> None:
    callers = Callers(slots=1)
    with pytest.raises(ZeroDivisionError):
        async with callers.semaphore.slot("a"):
            raise ZeroDivisionError
    await callers.call("b1")
    assert callers.entered == ["b1"]


def test_slots_that_are_left_as_the_event_loop_is_closed_leave_no_task_behind() -> None:
    problems: list[str] = []

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["message"]))
        callers = Callers(slots=1, rest=1)
        await callers.call("a1", "a2")
        callers.clock.move(0.3)

    asyncio.run(serve())
    gc.collect()
    assert problems == []
