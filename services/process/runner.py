"""Starts services in order and stops them in reverse, one at a time: listeners close before the roles they call."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

from services.errors import CarillonError
from services.process.logs import logger

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    progress: Callable[[], int] = lambda: 0,
    listeners: Sequence[Service] = (),
    stopping: asyncio.Event | None = None,
    on_stopping: Callable[[], None] = lambda: None,
    drain_seconds: float = 0,
) -> None:
    """Run all services until SIGTERM, SIGINT or the first failure; a failure is raised after the graceful stop.

    A start fails when a service is not ready and `progress` has not changed for `start_seconds`. `progress` returns a
    number that grows while the log is read, which takes longer the longer the log is.

    `listeners` start before all services, so that callers can connect and wait, and stop before them too. `stopping`
    takes the place of the signals; a second signal ends the process at once. `on_stopping` ends readiness. Before it
    stops, a process that was ready runs on for `drain_seconds`, in which load balancers take it out.
    """
    stopping = stopping or _set_by_signals()
    tasks: list[tuple[Service, asyncio.Task[None]]] = []
    was_ready = False
    try:
        try:
            await _start([*listeners, *services], tasks, stopping, start_seconds, progress)
            if not stopping.is_set():
                on_ready()
                was_ready = True
            await _first(stopping.wait(), *(task for _, task in tasks))
        finally:
            on_stopping()
        if was_ready and drain_seconds > 0:
            logger.info("the process is not ready any more, and stops after the drain", seconds=drain_seconds)
            await _first(asyncio.sleep(drain_seconds), *(task for _, task in tasks))
    finally:
        opened, behind = tasks[: len(listeners)], tasks[len(listeners) :]
        for service, task in [*reversed(opened), *reversed(behind)]:
            await _stop(service, task, stop_seconds)


async def _start(
    services: Sequence[Service],
    tasks: list[tuple[Service, "asyncio.Task[None]"]],
    stopping: asyncio.Event,
    seconds: float,
    progress: Callable[[], int],
) -> None:
    """Start one service after the other, each once the one before is ready, until `stopping` is set; fill `tasks`."""
    for service in services:
        if stopping.is_set():
            break
        ready = asyncio.Event()
        tasks.append((service, asyncio.create_task(service.run(ready), name=service.name)))
        before = -1
        while not ready.is_set() and not stopping.is_set():
            if (now := progress()) == before:
                raise CarillonError(
                    f"{service.name} is not ready, and made no progress for {seconds:.0f} s; the log says above what it"
                    " waits for"
                )
            before = now
            await _first(ready.wait(), stopping.wait(), *(task for _, task in tasks), seconds=seconds)


def _set_by_signals() -> asyncio.Event:
    """Return an event that the first signal to stop sets; after it such signals end the process by their default."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    return stopping


async def _first(*waits: "asyncio.Future[object] | object", seconds: float | None = None) -> None:
    """Return once the first is done; raise what a service raised."""
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
