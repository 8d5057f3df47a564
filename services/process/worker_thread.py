"""A thread that does blocking work for event loops, one call after the other."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from services.errors import UnavailableError

Result = TypeVar("Result")
_Call: TypeAlias = tuple["asyncio.Future[Any]", Callable[[], Any]]


class WorkerThread:
    """Runs calls in a thread of its own, in the order in which they were made.

    A call takes half the CPU time that one of a ThreadPoolExecutor takes, which makes a second future with a lock for
    each. The thread starts with the first call. It ends with `shutdown`, or when this object is garbage-collected, and
    does not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_shut_down = False

    def call(self, function: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run the function; the future holds its result or its error. Cancelling it stops no call that has begun.

        UnavailableError: the thread was shut down, because what it serves stops.
        """
        if self._is_shut_down:
            raise UnavailableError(f"{self._name} is stopping; try again")
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=[self._calls], name=self._name, daemon=True)
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

    def __del__(self) -> None:
        self._calls.put(None)


def _run(calls: "SimpleQueue[_Call | None]") -> None:
    while _run_next(calls):
        """Nothing of a call stays in memory until the next one."""


def _run_next(calls: "SimpleQueue[_Call | None]") -> bool:
    call = calls.get()
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
