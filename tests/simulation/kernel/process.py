"""Simulated processes. Everything that runs in one of them carries it in a context variable."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tests.simulation.kernel.loop import SimulatedLoop

Result = TypeVar("Result")

CURRENT: "ContextVar[Process | None]" = ContextVar("simulated process", default=None)
"""The process whose code runs now; None for the world's own code."""


class ProcessKilled(BaseException):
    """Raised where a process dies in the middle of synchronous code, because Python code can only end by unwinding.

    What the unwinding code awaits never happens, since the event loop runs nothing of a killed process.
    """


class Process:
    """A process as its event loop sees it: the tasks and callbacks that were started in its context.

    `kill` ends it as SIGKILL does: none of its code runs any more, not even a `finally`. Whatever it holds stays in
    memory until the world has ended, because Python would otherwise run its `finally` blocks. A killed process is never
    started again; another Process takes its name.
    """

    def __init__(self, name: str, loop: "SimulatedLoop", is_disk_full: Callable[[], bool] = lambda: False) -> None:
        """`is_disk_full`: whether the process cannot write its files now."""
        self.name = name
        self.is_disk_full = is_disk_full
        self.is_alive = True
        self.steps = 0
        self._loop = loop
        self._context = Context()
        self._context.run(CURRENT.set, self)
        self._held: list[asyncio.Handle] | None = None
        self._dies_at: int | None = None
        self._dying: Callable[[], object] = lambda: None
        self._kept: list[object] = []
        self._at_death: dict[int, Callable[[], object]] = {}
        self._deaths = 0

    def start(self, work: Coroutine[Any, Any, Result], name: str | None = None) -> "asyncio.Task[Result]":
        """Start a task in this process. A task of a killed process never ends, so only its own process may await it."""
        return self._loop.create_task(work, name=name, context=self.context())

    def context(self) -> Context:
        """Return a context in which callbacks belong to this process."""
        return self._context.copy()

    def kill(self) -> None:
        """End the process at once."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._kept += [task for task in asyncio.all_tasks(self._loop) if getattr(task, "process", None) is self]
        self._kept += self._held or ()
        self._held = None
        callbacks, self._at_death = list(self._at_death.values()), {}
        for callback in callbacks:
            callback()

    def kill_after(self, steps: int, then: Callable[[], object] = lambda: None) -> None:
        """Kill the process before the callback that follows the next `steps` ones: between two awaits somewhere.

        `then` is called when that happens.
        """
        self._dies_at, self._dying = self.steps + steps, then

    def spare(self) -> None:
        """Take back what `kill_after` has arranged."""
        self._dies_at = None

    def pause(self, seconds: float) -> None:
        """Stop the process for this time, as SIGSTOP and SIGCONT do; what falls due meanwhile runs afterwards."""
        if self.is_alive and self._held is None:
            self._held = []
            self._loop.call_later(seconds, self._resume, context=Context())

    @property
    def is_paused(self) -> bool:
        return self._held is not None

    def at_death(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call the function when the process is killed; return a function that takes this back."""
        self._deaths += 1
        number = self._deaths
        self._at_death[number] = callback
        return lambda: self._at_death.pop(number, None)

    def keep(self, what: object) -> None:
        """Keep an object in memory until the world has ended."""
        self._kept.append(what)

    def admits(self, handle: asyncio.Handle) -> bool:
        """Return whether the callback may run now; the event loop asks before each."""
        if self.is_alive and self._held is None:
            self.steps += 1
            if self.steps != self._dies_at:
                return True
            self._dying()
            self.kill()
        (self._kept if self._held is None else self._held).append(handle)
        return False

    def _resume(self) -> None:
        held, self._held = self._held, None
        self._loop.resume(held or [])
