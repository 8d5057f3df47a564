"""FairGate: who enters when the slots are taken."""

import asyncio

import pytest

from services.runtime.errors import BusyError
from services.runtime.fairness.gate import FairGate


async def steps() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Callers:
    """Callers that note their entering and hold their slot until they are released."""

    def __init__(self, gate: FairGate) -> None:
        self.entered: list[str] = []
        self._gate = gate
        self._held: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def call(self, *names: str) -> None:
        """Start a caller for each name; the key is its first letter."""
        for name in names:
            self.tasks.append(asyncio.create_task(self._run(name)))
            await steps()

    async def release(self) -> None:
        """Let the caller that entered first go."""
        self._held.pop(0)[1].set()
        await steps()

    async def _run(self, name: str) -> None:
        async with self._gate.turn(name[0]):
            self.entered.append(name)
            released = asyncio.Event()
            self._held.append((name, released))
            await released.wait()


async def test_waiting_keys_enter_in_turn() -> None:
    callers = Callers(FairGate("requests", 1, max_waiting=10))
    await callers.call("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    for _ in range(7):
        await callers.release()
    assert callers.entered == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    await asyncio.gather(*callers.tasks)


async def test_a_key_holds_no_more_than_its_slots() -> None:
    callers = Callers(FairGate("requests", 3, slots_per_key=2, max_waiting=10))
    await callers.call("a1", "a2", "a3", "a4")
    assert callers.entered == ["a1", "a2"]
    await callers.call("b1")
    assert callers.entered == ["a1", "a2", "b1"]
    for _ in range(5):
        await callers.release()
    assert callers.entered == ["a1", "a2", "b1", "a3", "a4"]
    await asyncio.gather(*callers.tasks)


async def test_too_many_of_one_key_are_refused_and_another_key_is_not() -> None:
    callers = Callers(FairGate("requests", 1, max_waiting=2))
    await callers.call("a1", "a2", "a3", "a4", "b1")
    with pytest.raises(BusyError, match="2 requests of app a wait already"):
        await callers.tasks[3]
    for _ in range(4):
        await callers.release()
    assert sorted(callers.entered) == ["a1", "a2", "a3", "b1"]


async def test_a_caller_that_leaves_while_it_waits_takes_no_slot() -> None:
    callers = Callers(FairGate("requests", 1, max_waiting=5))
    await callers.call("a1", "a2", "b1")
    callers.tasks[1].cancel()
    await steps()
    await callers.release()
    await callers.release()
    assert callers.entered == ["a1", "b1"]
    await callers.call("c1")
    assert callers.entered[-1] == "c1"


async def test_a_caller_cancelled_just_when_admitted_gives_its_slot_back() -> None:
    gate = FairGate("requests", 1, max_waiting=5)
    await gate.enter("a")
    waiting = asyncio.create_task(gate.enter("b"))
    await steps()
    gate.leave("a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(60):
        await gate.enter("c")


async def test_an_error_gives_the_slot_back() -> None:
    gate = FairGate("requests", 1, max_waiting=5)
    with pytest.raises(ZeroDivisionError):
        async with gate.turn("a"):
            raise ZeroDivisionError
    async with asyncio.timeout(60), gate.turn("b"):
        pass
