"""Control of the event loop in tests: running ready tasks, and running services in the test's process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, cast

from testkit.dying_role import KilledError

TIMEOUT_S = 20.0
"""How long a test waits for what has to happen."""


async def run_ready_tasks(turns: int = 30) -> None:
    """Run the tasks that wait neither for the clock nor for input or output, for some turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def running_services(services: Sequence[Any], unready: Sequence[str] = ()) -> AsyncIterator[None]:
    """Start services in order, waiting until each is ready except those named in `unready`; cancel them in reverse.

    A service may end with KilledError; any other error of a service is raised.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        for service in services:
            ready = asyncio.Event()
            tasks.append(asyncio.create_task(service.run(ready)))
            waits: list[asyncio.Task[Any]] = [asyncio.create_task(cast(Awaitable[Any], ready.wait())), tasks[-1]]  # type: ignore[arg-type]
            if service.name not in unready:
                await asyncio.wait(waits, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
                if not ready.is_set() and not tasks[-1].done():
                    raise TimeoutError(f"{service.name} was not ready")
            waits[0].cancel()
        yield
        for task in tasks:
            if task.done() and not isinstance(task.exception(), KilledError):
                await task
    finally:
        for task in reversed(tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KilledError):
                await task
