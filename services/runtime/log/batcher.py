"""Group commit: many callers, few writes."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from services.runtime.errors import BusyError, UnavailableError

Item = TypeVar("Item")
Result = TypeVar("Result")


class ByteBudget:
    """A bound on what may wait, in bytes; several lanes can share one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._taken = 0

    def enter(self, size: int) -> None:
        """Take budget for `size` bytes. BusyError: there is not enough; an empty budget takes anything."""
        if self._taken and self._taken + size > self._max_bytes:
            raise BusyError(f"{self._taken} bytes wait to be written already; try again")
        self._taken += size

    def leave(self, size: int) -> None:
        self._taken -= size


class Batcher(Generic[Item, Result]):
    """Gathers items while a write is under way and ships them together with the next; order is kept.

    `ship` gets the items of one batch and returns one result for each; its exception goes to every caller of that
    batch. One batch is under way at a time. A lane with nothing to do holds no task. `budget` is left when a batch has
    been answered: whoever puts items has entered it before, with their size.
    """

    def __init__(
        self, ship: Callable[[list[Item]], Awaitable[Sequence[Result]]], budget: ByteBudget, max_batch: int = 5_000
    ) -> None:
        self._ship = ship
        self._budget = budget
        self._max_batch = max_batch
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, items: Sequence[Item], size: int) -> "asyncio.Future[Sequence[Result]]":
        """Queue the items; the future holds their results, in order. A caller that goes away stops nothing."""
        waiting: _Waiting[Item, Result] = _Waiting(items, size)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return waiting.future

    async def drain(self) -> None:
        """Return once nothing waits any more."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        batch: list[_Waiting[Item, Result]] = []
        try:
            while self._waiting:
                batch = self._take()
                await self._ship_batch(batch)
        except asyncio.CancelledError:
            for waiting in [*batch, *self._waiting]:
                waiting.fail(UnavailableError("the process is stopping"))
            raise

    async def _ship_batch(self, batch: "list[_Waiting[Item, Result]]") -> None:
        try:
            results = await self._ship([item for waiting in batch for item in waiting.items])
        except Exception as error:
            for waiting in batch:
                waiting.fail(error)
        else:
            start = 0
            for waiting in batch:
                waiting.answer(results[start : start + len(waiting.items)])
                start += len(waiting.items)
        finally:
            self._budget.leave(sum(waiting.size for waiting in batch))

    def _take(self) -> "list[_Waiting[Item, Result]]":
        batch = [self._waiting.popleft()]
        count = len(batch[0].items)
        while self._waiting and count + len(self._waiting[0].items) <= self._max_batch:
            batch.append(self._waiting.popleft())
            count += len(batch[-1].items)
        return batch


class _Waiting(Generic[Item, Result]):
    __slots__ = ("future", "items", "size")

    def __init__(self, items: Sequence[Item], size: int) -> None:
        self.items = items
        self.size = size
        self.future: asyncio.Future[Sequence[Result]] = asyncio.get_running_loop().create_future()

    def answer(self, results: Sequence[Result]) -> None:
        if not self.future.done():
            self.future.set_result(results)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
