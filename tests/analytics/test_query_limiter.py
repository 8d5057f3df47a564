"""QueryLimiter: which app's call gets the next slot, and one export at a time."""

import asyncio

import pytest

from analytics.questions import MAX_WAITING, QUERIES, QueryLimiter
from services.errors import BusyError
from services.process.clock import ManualClock


class Readers:
    """Calls that query until they are ended; `querying` names them in the order in which their queries began."""

    def __init__(self) -> None:
        self.querying: list[str] = []
        self._limiter = QueryLimiter(ManualClock(0))
        self._ended: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        """Start a call for each name; its app is the first letter."""
        for name in names:
            self._ended[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._ask(name))
            await self._steps()

    async def end(self, name: str) -> None:
        self._ended[name].set()
        await self._steps()

    async def _ask(self, name: str) -> None:
        async with self._limiter.slot(name[0]):
            self.querying.append(name)
            await self._ended[name].wait()

    async def _steps(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_one_apps_readers_delay_another_by_no_query() -> None:
    readers = Readers()
    await readers.ask("q0")
    await readers.end("q0")
    await readers.ask("n1", "n2", "n3", "n4", "q1")
    assert readers.querying == ["q0", "n1", "q1"]
    await readers.end("n1")
    assert readers.querying[-1] == "n2"


async def test_an_app_alone_has_all_turns_but_never_the_threads_of_ingestion() -> None:
    readers = Readers()
    await readers.ask("n1", "n2", "n3", "n4", "n5")
    assert len(readers.querying) == QUERIES == 3


async def test_a_caller_that_leaves_while_it_waits_is_never_queried_for() -> None:
    readers = Readers()
    await readers.ask("n1", "n2", "n3", "n4", "n5")
    readers.tasks["n4"].cancel()
    await readers.end("n1")
    assert readers.querying == ["n1", "n2", "n3", "n5"]


async def test_too_many_waiting_calls_of_an_app_are_refused() -> None:
    readers = Readers()
    await readers.ask(*(f"n{number}" for number in range(QUERIES + MAX_WAITING + 1)))
    with pytest.raises(BusyError, match="too many queries wait already"):
        await readers.tasks[f"n{QUERIES + MAX_WAITING}"]
    await readers.ask("q1")
    await readers.end("n0")
    assert readers.querying[-1] == "q1"


async def test_an_export_waits_for_another_one() -> None:
    limiter = QueryLimiter(ManualClock(0))
    first, second = limiter.export(), limiter.export()
    await first.__aenter__()
    waiting = asyncio.create_task(second.__aenter__())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    await first.__aexit__(None, None, None)
    await waiting
    await second.__aexit__(None, None, None)


async def test_an_export_is_refused_while_another_one_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analytics.questions._EXPORT_WAIT_S", 0.01)
    limiter = QueryLimiter(ManualClock(0))
    async with limiter.export():
        with pytest.raises(BusyError, match="another export is in progress"):
            async with limiter.export():
                pass
    async with limiter.export():
        pass
