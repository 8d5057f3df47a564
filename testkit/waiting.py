"""Polls for a condition until a time-out: for changes in other processes, which set no event here."""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Value = TypeVar("Value")
_POLL_S = 0.02


async def until(condition: Callable[[], Awaitable[Value | None]], seconds: float = 60) -> Value:
    """Return the first true value of an async condition; TimeoutError when there is none in time."""
    async with asyncio.timeout(seconds):
        while not (value := await condition()):
            await asyncio.sleep(_POLL_S)
        return value


async def until_holds(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Return once a condition holds; TimeoutError when it does not in time."""

    async def holds() -> bool:
        return condition()

    await until(holds, seconds)


def blocking_until(condition: Callable[[], Value], seconds: float = 60) -> Value:
    """Return the first true value of a condition, blocking the thread; TimeoutError when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition does not hold after {seconds} s")
        time.sleep(_POLL_S)
    return value


def once_available(run: Callable[[], str], seconds: float = 60) -> str:
    """Return what a command prints, run again while it says that analytics is behind the event log.

    `run` raises an error with the command's standard error in its text, or in `stderr`.
    """

    def attempt() -> str:
        try:
            return run()
        except (AssertionError, subprocess.CalledProcessError) as error:
            if "behind the event log" not in f"{error}{getattr(error, 'stderr', '')}":
                raise
            return ""

    return blocking_until(attempt, seconds)


async def run_ready_tasks(turns: int = 30) -> None:
    """Let the event loop run for some turns: tasks that wait for no time and no input go on."""
    for _ in range(turns):
        await asyncio.sleep(0)
