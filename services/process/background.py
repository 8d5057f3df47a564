"""Background tasks: tasks that no caller awaits, so that their errors would go unnoticed.

Each role starts its background tasks here. An error is logged and counted, and a process is not ready once a task has
ended that was to run until it is cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from services.process.logs import logger
from services.process.metrics import BACKGROUND_FAILURES

Result = TypeVar("Result")

_ended: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, str]]" = WeakKeyDictionary()


def start(name: str, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
    """Start a task that ends by itself. The process stays ready after an error, because it concerns this task alone."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_check)
    return task


def start_endless(name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Start a task that runs until it is cancelled. Once it has ended in another way the process is not ready."""
    task = start(name, work)
    task.add_done_callback(partial(_note_end, asyncio.get_running_loop()))
    return task


RESTART_S = 10.0
"""Pause before the work of a lasting task is begun anew after an error."""


def start_lasting(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
    """Start a task that begins its work again after an error, which is logged and counted. The process stays ready.

    For work without which the process can do its main task: `carillon up` can send pushes without it.
    """

    async def again_and_again() -> None:
        while True:
            try:
                await work()
            except Exception as error:
                BACKGROUND_FAILURES.inc()
                logger.error("a background task failed and is begun anew", task=name, exc_info=error)
                await asyncio.sleep(RESTART_S)
            else:
                return

    return start(name, again_and_again())


def ended() -> Mapping[str, str]:
    """Return the endless tasks of the running event loop that have ended, by name, with how they ended."""
    return _ended.get(asyncio.get_running_loop(), {})


def _check(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()):
        BACKGROUND_FAILURES.inc()
        logger.error("a background task failed", task=task.get_name(), exc_info=error)


def _note_end(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
    if task.cancelled():
        if task.cancelling():
            return
        problem = "has ended"
    else:
        error = task.exception()
        problem = f"failed: {type(error).__name__}: {error}" if error else "has ended"
    _ended.setdefault(loop, {})[task.get_name()] = problem
