"""Waiting for tasks of the ingestion that depend on each other."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def run_to_end(work: Awaitable[None], stop_s: float) -> None:
    """Run the work to its end; when cancelled, wait for that at most `stop_s` seconds."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=stop_s)
        task.cancel()
        raise


async def nothing() -> None:
    """Do nothing: it stands for the write before that of the first batch."""


async def until_done(task: asyncio.Task[Any], *, unless_failed: asyncio.Task[Any]) -> None:
    """Wait for a task; raise the error of the other one at once, should it fail meanwhile."""
    pending = {task, unless_failed}
    while not task.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if unless_failed in done:
            unless_failed.result()
