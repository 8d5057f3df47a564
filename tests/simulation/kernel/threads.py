"""Threads of production code, run inside the simulated event loop.

A call that production code makes in a thread runs as one callback of its process, after a random simulated delay. A
thread runs its calls one after the other, in the order in which they were made.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from unittest.mock import patch

from services.errors import UnavailableError
from services.process.worker_thread import WorkerThread
from tests.simulation.kernel.process import CURRENT, ProcessKilled

if TYPE_CHECKING:
    from tests.simulation.kernel.loop import SimulatedLoop

Result = TypeVar("Result")


class InlineThread:
    """One thread. What it runs belongs to the process that made the call."""

    def __init__(self, loop: "SimulatedLoop", delay_s: Callable[[], float]) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._calls: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._is_busy = self._is_shut_down = False

    def call(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        if self._is_shut_down:
            raise UnavailableError("a role is stopping; try again")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._calls.append((future, function))
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_later(self._delay_s(), self._run_next)
        return future

    def shutdown(self) -> None:
        """Run all calls that were made, as a caller that waits for the thread's end finds them."""
        self._is_shut_down = True
        while self._calls:
            self._run(*self._calls.popleft())

    def _run_next(self) -> None:
        if self._calls:
            self._run(*self._calls.popleft())
        self._is_busy = bool(self._calls)
        if self._is_busy:
            self._loop.call_later(self._delay_s(), self._run_next)

    def _run(self, future: "asyncio.Future[Any]", function: Callable[[], Any]) -> None:
        if future.cancelled():
            return
        try:
            result = function()
        except Exception as error:
            self._loop.call_soon(_settle, future, None, error)
        else:
            self._loop.call_soon(_settle, future, result, None)


class InlineThreads:
    """All threads of a world: `run_in_executor` of its loop, and the replacement of WorkerThread."""

    def __init__(self, loop: "SimulatedLoop", delay_s: Callable[[], float]) -> None:
        self.delay_s = delay_s
        self._loop = loop
        self._of: dict[int, InlineThread] = {}
        self._kept: list[object] = []

    def run_in_executor(
        self, executor: Executor | None, function: Callable[..., Result], *arguments: Any
    ) -> "asyncio.Future[Result]":
        """Run in the executor's one thread; in a thread of its own where the executor has several."""
        call = partial(function, *arguments)
        if isinstance(executor, ThreadPoolExecutor) and executor._max_workers == 1:
            return self.of(executor).call(call)
        return InlineThread(self._loop, self.delay_s).call(call)

    def of(self, owner: object) -> InlineThread:
        """Return the thread of an executor or a WorkerThread."""
        thread = self._of.get(id(owner))
        if thread is None:
            thread = self._of[id(owner)] = InlineThread(self._loop, self.delay_s)
            self._kept.append(owner)  # so that no other object gets its id
        return thread

    def result_of(self, work: Coroutine[Any, Any, Result]) -> "BlockingCall[Result]":
        """Start work for a thread that will block until it is done; takes the place of run_coroutine_threadsafe."""
        return BlockingCall(self._loop, self._loop.create_task(work))

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Let production code make these threads inside the `with`."""
        with (
            patch.object(WorkerThread, "call", lambda owner, function: self.of(owner).call(function)),
            patch.object(WorkerThread, "shutdown", lambda owner: self.of(owner).shutdown()),
            patch.object(ThreadPoolExecutor, "shutdown", lambda owner, *_, **__: self.of(owner).shutdown()),
            patch.object(asyncio, "run_coroutine_threadsafe", lambda work, loop: self.result_of(work)),
        ):
            yield


class BlockingCall(Generic[Result]):
    """Work in the event loop that a thread waits for. The loop runs on meanwhile, below the thread on the stack."""

    def __init__(self, loop: "SimulatedLoop", task: "asyncio.Task[Result]") -> None:
        self._loop = loop
        self._task = task

    def result(self, timeout: float | None = None) -> Result:
        """Return the result. TimeoutError: it takes longer than `timeout` seconds."""
        process = CURRENT.get()
        self._loop.run_until(self._task, float("inf") if timeout is None else self._loop.time() + timeout)
        if process is not None and not process.is_alive:
            raise ProcessKilled
        if not self._task.done():
            raise TimeoutError
        return self._task.result()


def _settle(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
