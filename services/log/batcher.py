"""Group commit: the items of many callers are written in few batches."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from services.errors import BusyError, UnavailableError
from services.process import background

Item = TypeVar("Item")
Result = TypeVar("Result")


class ByteBudget:
    """Upper bound in bytes of the items that wait to be written; several batchers can share one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._reserved = 0

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes.

        BusyError: `size` and the bytes that wait already exceed the bound. While nothing waits, any size is accepted.
        """
        if self._reserved and self._reserved + size > self._max_bytes:
            raise BusyError(f"{self._reserved} bytes wait to be written already; try again")
        self._reserved += size

    def release(self, size: int) -> None:
        self._reserved -= size


class Batcher(Generic[Item, Result]):
    """Collects items while a batch is written, and ships them in order with the next batch.

    `ship` gets the items of one batch and returns one result for each; its exception is raised in every caller of that
    batch. One batch is in flight at a time; an idle batcher has no task. Callers reserve `budget` before they put
    items; the batcher releases it when the batch has ended.
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
        """Queue the items; the future holds their results, in order. Cancelling it does not stop the write."""
        waiting: _Waiting[Item, Result] = _Waiting(items, size)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = background.start("batcher", self._run())
        return waiting.future

    async def drain(self) -> None:
        """Return once no item waits and no batch is in flight."""
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
            self._budget.release(sum(waiting.size for waiting in batch))

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
