"""Group commit: many callers, few writes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from services.runtime.errors import BusyError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Lane(Generic[Item, Result]):
    """Gathers items while a write is under way and ships them together with the next; order is kept.

    `ship` gets the items of one batch and returns one result for each; its exception goes to every caller of that
    batch. One batch is under way at a time.
    """

    def __init__(
        self,
        ship: Callable[[list[Item]], Awaitable[Sequence[Result]]],
        max_waiting: int = 200_000,
        max_batch: int = 5_000,
    ) -> None:
        self._ship = ship
        self._max_waiting = max_waiting
        self._max_batch = max_batch
        self._waiting: list[tuple[Sequence[Item], asyncio.Future[Sequence[Result]]]] = []
        self._waiting_items = 0
        self._task: asyncio.Task[None] | None = None

    def put(self, items: Sequence[Item]) -> "asyncio.Future[Sequence[Result]]":
        """Queue the items; the future holds their results, in order. A caller that goes away stops nothing."""
        if self._waiting_items + len(items) > self._max_waiting:
            raise BusyError(f"{self._waiting_items} records wait for the event log already; try again")
        future: asyncio.Future[Sequence[Result]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, future))
        self._waiting_items += len(items)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return future

    async def drain(self) -> None:
        """Return once nothing waits any more."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._waiting:
            batch = self._take()
            try:
                results = await self._ship([item for items, _ in batch for item in items])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                self._answer(batch, results)

    def _take(self) -> list[tuple[Sequence[Item], "asyncio.Future[Sequence[Result]]"]]:
        count = 0
        for taken, (items, _) in enumerate(self._waiting, start=1):  # noqa: B007
            count += len(items)
            if count >= self._max_batch:
                break
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._waiting_items -= count
        return batch

    @staticmethod
    def _answer(
        batch: list[tuple[Sequence[Item], "asyncio.Future[Sequence[Result]]"]], results: Sequence[Result]
    ) -> None:
        start = 0
        for items, future in batch:
            if not future.done():
                future.set_result(results[start : start + len(items)])
            start += len(items)
