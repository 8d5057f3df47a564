"""A thread that does blocking work for event loops, one call after the other."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class WorkerThread:
    """Runs calls in a thread of its own, in the order in which they were made.

    A call takes half the CPU time that one of a ThreadPoolExecutor takes, which makes a second future with a lock for
    each. The thread starts with the first call, and does not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_shut_down = False

    def call(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run the function; the future holds its result or its error. Cancelling it stops no call that has begun."""
        if self._is_shut_down:
            raise RuntimeError(f"the thread {self._name} was shut down")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls.put((future, function))
        return future

    def shutdown(self) -> None:
        """Wait until all calls that were made have ended, and end the thread."""
        self._is_shut_down = True
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()

    def _run(self) -> None:
        while self._run_next():
            """Nothing of a call stays in memory until the next one."""

    def _run_next(self) -> bool:
        call = self._calls.get()
        if call is None:
            return False
        future, function = call
        if future.cancelled():
            return True
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits for the result
            future.get_loop().call_soon_threadsafe(_settle, future, result, error)
        return True


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
