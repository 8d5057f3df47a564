"""Starts services in order and stops them in reverse, one at a time: listeners close before the roles they call."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from services.runtime.errors import CarillonError
from services.runtime.process.logs import logger


class Service(Protocol):
    """A part of a process that runs until it is cancelled."""

    @property
    def name(self) -> str: ...

    async def run(self, ready: asyncio.Event) -> None:
        """Set `ready` once other services may rely on this one, then run. Cancellation stops it gracefully."""
        ...


async def run(
    services: Sequence[Service],
    on_ready: Callable[[], None],
    start_seconds: float = 600,
    stop_seconds: float = 30,
    *,
    listeners: Sequence[Service] = (),
    stopping: asyncio.Event | None = None,
) -> None:
    """Run all services until SIGTERM, SIGINT or the first failure; a failure is raised after the graceful stop.

    `listeners` start before all services, so that callers can connect and wait, and stop before them too. `stopping`
    takes the place of the signals.
    """
    stopping = stopping or _set_by_signals()
    tasks: list[tuple[Service, asyncio.Task[None]]] = []
    try:
        for service in [*listeners, *services]:
            if stopping.is_set():
                break
            ready = asyncio.Event()
            tasks.append((service, asyncio.create_task(service.run(ready), name=service.name)))
            await _first(ready.wait(), stopping.wait(), *(task for _, task in tasks), seconds=start_seconds)
            if not ready.is_set() and not stopping.is_set():
                raise CarillonError(f"{service.name} was not ready within {start_seconds:.0f} s")
        if not stopping.is_set():
            on_ready()
        await _first(stopping.wait(), *(task for _, task in tasks))
    finally:
        opened, behind = tasks[: len(listeners)], tasks[len(listeners) :]
        for service, task in [*reversed(opened), *reversed(behind)]:
            await _stop(service, task, stop_seconds)


def _set_by_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


async def _first(*waits: "asyncio.Future[object] | object", seconds: float | None = None) -> None:
    """Return when the first is done; raise what a service raised."""
    own = [asyncio.ensure_future(wait) for wait in waits if not isinstance(wait, asyncio.Task)]  # type: ignore[call-overload]
    services = [wait for wait in waits if isinstance(wait, asyncio.Task)]
    try:
        done, _ = await asyncio.wait([*own, *services], return_when=asyncio.FIRST_COMPLETED, timeout=seconds)
    finally:
        for future in own:
            future.cancel()
    for task in services:
        if task in done:
            if not task.cancelled():
                task.result()
            raise CarillonError(f"{task.get_name()} ended by itself")


async def _stop(service: Service, task: "asyncio.Task[None]", seconds: float) -> None:
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        logger.error("a service did not stop in time", service=service.name, seconds=seconds)
    elif not task.cancelled() and (error := task.exception()):
        logger.error("a service failed", service=service.name, error=str(error))
