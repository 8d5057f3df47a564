"""Services of the runtime, run in the process of a test or a benchmark."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, cast

from services.domain.role import BuiltRole
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Server
from services.process.runner import Service
from testkit.faults.crashing_log import KilledError

TIMEOUT_S = 60.0
"""How long a test waits for something that must happen."""


async def started(service: Service, seconds: float = TIMEOUT_S) -> "asyncio.Task[None]":
    """Start a service and return its task once it is ready; a failure at the start is raised."""
    task = asyncio.create_task(service.run(ready := asyncio.Event()), name=service.name)
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    assert ready.is_set(), f"{service.name} is not ready after {seconds} s"
    return task


async def stop(tasks: Sequence["asyncio.Task[None]"], seconds: float = TIMEOUT_S) -> None:
    """Cancel the tasks in reverse order, each once the one before it has ended."""
    for task in reversed(tasks):
        task.cancel()
        await asyncio.wait([task], timeout=seconds)


@contextlib.asynccontextmanager
async def running_services(
    services: Sequence[Any], unready: Sequence[str] = (), *, stop_at_once: bool = False
) -> AsyncIterator[None]:
    """Start services in order, waiting until each is ready except those named in `unready`; cancel them in reverse.

    A service may end with KilledError; any other error of a service is raised. `stop_at_once` cancels all before it
    waits for the first: each HTTP listener takes 0.2 s to stop.
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
        for task in reversed(tasks) if stop_at_once else ():
            task.cancel()
        for task in reversed(tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KilledError):
                await task


def add_servicers(role: BuiltRole, server: LocalServer) -> None:
    """Let a server in this process answer the calls of a role."""
    for add in role.servicers:
        add(cast(Server, server))
