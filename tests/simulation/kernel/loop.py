"""A seeded event loop with simulated time, which knows to which simulated process each callback belongs.

Each callback takes a few simulated microseconds, and time jumps to the next timer when nothing is ready. Callbacks that
are ready at the same time run in an order that the seed chooses. There are no sockets, no signals and no threads: what
needs them raises NotImplementedError, and calls in an executor run in the loop (`threads.py`).
"""

import asyncio
import heapq
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextvars import Context, copy_context
from itertools import count
from random import Random
from typing import Any, TypeVar, cast

from tests.simulation.kernel.process import CURRENT, Process
from tests.simulation.kernel.threads import InlineThreads

Result = TypeVar("Result")

Dial = Callable[[Callable[[], asyncio.Protocol], str, int], Awaitable[tuple[asyncio.Transport, asyncio.Protocol]]]
"""Connects the protocol that the function makes with the server at a host and port. OSError: there is none."""

STEP_S = 20e-6
"""Simulated time that one callback takes."""


class StuckError(Exception):
    """Nothing is left to run, or far too much was run: the world makes no progress."""


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    def __init__(
        self, number: int, work: Any, loop: "SimulatedLoop", name: str | None, context: Context | None
    ) -> None:
        self._number = number
        self.process = CURRENT.get() if context is None else context.get(CURRENT)
        super().__init__(work, loop=loop, name=name or f"task {number}", context=context)
        self._log_destroy_pending = False  # the tasks of killed processes are destroyed when the world ends

    def __hash__(self) -> int:
        return self._number


class SimulatedFuture(asyncio.Future[Any]):
    """A future whose hash is its number, which it gets when it is first asked for."""

    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            self._number = cast(SimulatedLoop, self.get_loop()).next_number()
        return self._number


class SimulatedHandle(asyncio.TimerHandle):
    """A callback, at once or at a time. It is made without what asyncio's handles do for debugging."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Callable[..., object], args: Sequence[Any], context: Context | None
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        """Let the loop drop the callback when its turn comes."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one world.

    `fifo`: the callbacks of one process run in the order in which they became ready, as asyncio's own loop runs them;
    only those of several processes are mixed. Otherwise all are shuffled, which finds code that relies on that order.
    `on_error` is given what asyncio would log as unhandled. `max_steps` bounds the callbacks of the world.
    """

    def __init__(
        self,
        random: Random,
        *,
        thread_delay_s: Callable[[], float] = lambda: 0.0,
        fifo: bool = False,
        max_steps: int = 50_000_000,
        on_error: Callable[[dict[str, Any]], None] = lambda context: None,
    ) -> None:
        self.steps = 0
        self.dial: Dial | None = None
        self._now_s = 0.0
        self._random = random
        self._fifo = fifo
        self._max_steps = max_steps
        self._on_error = on_error
        self._ready: list[asyncio.Handle] = []
        self._turn: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count(1)
        self._threads = InlineThreads(self, thread_delay_s)
        self._is_running = self._is_closed = False

    def time(self) -> float:
        return self._now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = SimulatedHandle(0.0, callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = SimulatedHandle(when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def resume(self, handles: Iterable[asyncio.Handle]) -> None:
        """Make callbacks ready that were held back."""
        self._ready += handles

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str = "", port: int = 0, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect by `dial`, if the world has a network of bytes."""
        if self.dial is None:
            raise NotImplementedError
        return await self.dial(protocol_factory, host, port)

    def create_future(self) -> "asyncio.Future[Any]":
        return SimulatedFuture(loop=self)

    def next_number(self) -> int:
        """Return a number that nothing in this world has yet."""
        return next(self._numbers)

    def create_task(
        self,
        coro: "Generator[Any, None, Result] | Coroutine[Any, Any, Result]",
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> "asyncio.Task[Result]":
        return SimulatedTask(next(self._numbers), coro, self, name, context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Result], *args: Any
    ) -> "asyncio.Future[Result]":
        return self._threads.run_in_executor(executor, func, *args)

    @property
    def threads(self) -> InlineThreads:
        return self._threads

    def run_until_complete(self, future: "Generator[Any, None, Result] | Awaitable[Result]") -> Result:
        """Run the loop until the future is done. StuckError: it never will be."""
        hooks = sys.get_asyncgen_hooks()
        main: asyncio.Future[Result] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=lambda generator: None, finalizer=self._finalize)
        self._is_running = True
        try:
            self.run_until(main)
        finally:
            self._is_running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)
        return main.result()

    def run_until(self, future: "asyncio.Future[Any]", deadline_s: float = float("inf")) -> None:
        """Run callbacks until the future is done or the time has come. It may be called by a callback too."""
        is_done = future.done
        while not is_done() and self._now_s < deadline_s:
            if self._turn:
                handle = self._turn.pop()
            elif len(self._ready) == 1 and self._timers and self._timers[0][0] > self._now_s:
                handle = self._ready.pop()  # as a turn of its own, but faster: so is it nearly always
            else:
                self._begin_turn(deadline_s)
                continue
            if handle._cancelled:
                continue
            context: Context = handle._context  # type: ignore[attr-defined]
            process = context.get(CURRENT)
            if process is not None and not process.admits(handle):
                continue
            self.steps += 1
            self._now_s += STEP_S
            try:  # what Handle._run does, without a call more
                context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except BaseException as error:
                self._note_error(handle, error)

    def _note_error(self, handle: asyncio.Handle, error: BaseException) -> None:
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise error
        self.call_exception_handler({"message": "Exception in a callback", "exception": error, "handle": handle})

    def _begin_turn(self, deadline_s: float) -> None:
        if self.steps > self._max_steps:
            raise StuckError(f"no end after {self._max_steps} callbacks, at {self._now_s:.3f} s")
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not self._ready:
            next_s = min(timers[0][0] if timers else float("inf"), deadline_s)
            if next_s == float("inf"):
                raise StuckError(f"nothing is left to run, at {self._now_s:.3f} s")
            self._now_s = max(self._now_s, next_s)
        while timers and timers[0][0] <= self._now_s:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:
                self._ready.append(timer)
        turn, self._ready = self._ready, []
        if len(turn) > 1:
            turn = self._ordered(turn)
            turn.reverse()
        self._turn = turn

    def _ordered(self, handles: list[asyncio.Handle]) -> list[asyncio.Handle]:
        random = self._random.random
        if not self._fifo:
            if len(handles) == 2:
                return handles if random() < 0.5 else handles[::-1]
            drawn = sorted((random(), at) for at in range(len(handles)))
            return [handles[at] for _, at in drawn]
        by_process: dict[Process | None, list[asyncio.Handle]] = {}
        turns = []
        for handle in handles:
            process = handle._context.get(CURRENT)  # type: ignore[attr-defined]
            by_process.setdefault(process, []).append(handle)
            turns.append(process)
        places = sorted((random(), at) for at in range(len(turns)))
        queues = {process: iter(queue) for process, queue in by_process.items()}
        return [next(queues[turns[at]]) for _, at in places]

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = CURRENT.get()
        if process is not None and not process.is_alive:
            process.keep(generator)
        else:
            self.create_task(generator.aclose())

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(context)

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True

    def get_debug(self) -> bool:
        return False
