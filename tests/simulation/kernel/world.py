"""A simulated world: one event loop, made of a seed, on which a scenario runs production code."""

import gc
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, NoReturn, TypeVar
from unittest.mock import patch

import structlog

from services.log.port import NewRecord, Partition
from services.process import crashpoint
from tests.simulation.kernel.clock import ProcessClock
from tests.simulation.kernel.disk import FULL, limited_space
from tests.simulation.kernel.entropy import seeded_entropy
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.loop import SimulatedLoop
from tests.simulation.kernel.process import CURRENT, Process, ProcessKilled
from tests.simulation.kernel.same_steps import same_steps
from tests.simulation.kernel.trace import Trace

Result = TypeVar("Result")
Scenario = Callable[["World"], Coroutine[Any, Any, Result]]

THREAD_S = 200e-6
"""Typical delay of a call in a thread."""

_ended: list[object] = []
"""Worlds that have ended: kept, because Python would run the `finally` blocks of their killed processes."""


class LoggedError(NamedTuple):
    """An error that a living process logged, or that asyncio would have logged for it, `time_s` after the start."""

    process: str
    text: str
    details: str
    time_s: float = 0.0


class World:
    """The world of one seed. `directory` is an empty folder for the files of its processes.

    `random` gives one generator for each purpose, so that drawing more for one purpose changes nothing elsewhere.
    `fifo` as for SimulatedLoop; None: the seed chooses. `errors` holds what processes that were alive logged as errors.
    """

    def __init__(self, seed: int, directory: Path, *, fifo: bool | None = None) -> None:
        self.seed = seed
        self.directory = directory
        self.errors: list[LoggedError] = []
        self.loop = SimulatedLoop(  # type: ignore[abstract]  # methods for sockets and signals raise NotImplementedError
            self.random("schedule"),
            thread_delay_s=Latency(self.random("threads"), THREAD_S),
            fifo=self.random("fifo").random() < 0.5 if fifo is None else fifo,
            on_error=self._unhandled,
        )
        self.trace = Trace(self.loop.time, _current_name)
        self.at_snapshot: dict[str, Callable[[], object]] = {}
        """What is called when the process of a name has written a snapshot."""
        self.effects: Counter[str] = Counter()
        """The kinds of the faults that took effect, and how many of each did."""
        self._crashes: dict[tuple[str, str], tuple[int, Callable[[], object]]] = {}
        self._processes: list[Process] = []  # also the killed ones, which keep what they hold

    def random(self, purpose: str) -> Random:
        """Return a new generator, the same in each run of the seed."""
        return Random(f"{self.seed}/{purpose}")

    def process(self, name: str, is_disk_full: Callable[[], bool] = lambda: False) -> Process:
        """Return a new process; `is_disk_full` as for Process."""
        self.trace.event("process", named=name)
        self._processes.append(Process(name, self.loop, is_disk_full))
        return self._processes[-1]

    def clock(self, offset_ms: int = 0, drift: float = 0.0) -> ProcessClock:
        return ProcessClock(self.loop, offset_ms, drift)

    def note_stored(self, partition: Partition, offset: int, new_records: Sequence[NewRecord]) -> None:
        """Record an append in the trace; a Broker calls this."""
        contents = zlib.crc32(b"".join(new_record.key + new_record.value for new_record in new_records))
        self.trace.event(
            "stored", at=f"{partition.topic}/{partition.number}/{offset}", of=len(new_records), crc=contents
        )

    def crash_at(self, point: str, process: str, times: int = 1, then: Callable[[], object] = lambda: None) -> None:
        """Kill the process of this name when it reaches the crash point for the `times`-th time from now on.

        `point` is a member of crashpoint.Point, for whichever consumer. `then` is called when it is killed.
        """
        self._crashes[point, process] = (times, then)

    def spare(self) -> None:
        """Take back what `crash_at` has arranged."""
        self._crashes.clear()

    def run(self, scenario: Scenario[Result]) -> Result:
        """Run the scenario to its end, and with it the world. It can be run once."""
        _ended.append(self)
        with self._installed():
            result: Result = self.loop.run_until_complete(scenario(self))
        _ended.append(result)
        return result

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Put the world in the place of the system's entropy, threads, crash points and log messages."""
        with ExitStack() as stack:
            stack.enter_context(seeded_entropy(self.random("entropy")))
            stack.enter_context(self.loop.threads.replaced())
            stack.enter_context(patch.object(crashpoint, "_armed", self._reached))
            stack.enter_context(limited_space(_is_disk_full))
            stack.enter_context(same_steps())
            stack.callback(structlog.configure, **structlog.get_config())
            structlog.configure(processors=[self._logged], wrapper_class=structlog.BoundLogger)
            gc.disable()  # or it would run finalizers at moments that depend on earlier worlds
            stack.callback(gc.enable)
            yield

    def _reached(self, name: str) -> None:
        process = CURRENT.get()
        if process is None:
            return
        point = name.partition("@")[0]
        if point == crashpoint.Point.SNAPSHOT_REPLACED and process.name in self.at_snapshot:
            self.at_snapshot[process.name]()
        if (point, process.name) not in self._crashes:
            return
        left, then = self._crashes.pop((point, process.name))
        if left > 1:
            self._crashes[point, process.name] = (left - 1, then)
        else:
            then()
            self.trace.event("crash", at=name)
            process.kill()
            raise ProcessKilled

    def _logged(self, _: object, level: str, event: MutableMapping[str, Any]) -> NoReturn:
        process = CURRENT.get()
        if process is None or process.is_alive:
            text = str(event.pop("event"))
            error = event.pop("exc_info", None)
            details = {key: str(value).replace("\n", " ") for key, value in event.items()}
            self.trace.event(f"log-{level}", text=text)
            self.trace.note("log", **details)
            if isinstance(error, BaseException):
                self.trace.note("traceback", of="".join(traceback.format_exception(error)))
            if level in ("error", "critical") and not (FULL in f"{details} {error!r}" and _is_disk_full()):
                self.errors.append(LoggedError(_current_name(), text, f"{details} {error!r}", self.loop.time()))
        raise structlog.DropEvent

    def _unhandled(self, context: dict[str, Any]) -> None:
        process = CURRENT.get()
        error = context.get("exception")
        if isinstance(error, ProcessKilled) or (process is not None and not process.is_alive):
            return
        self.trace.note("unhandled", message=context.get("message"), error=repr(error))
        if isinstance(error, BaseException):
            self.trace.note("traceback", of="".join(traceback.format_exception(error)))
        self.errors.append(LoggedError(_current_name(), str(context.get("message")), repr(error), self.loop.time()))


def _current_name() -> str:
    process = CURRENT.get()
    return process.name if process is not None else "world"


def _is_disk_full() -> bool:
    process = CURRENT.get()
    return process is not None and process.is_disk_full()
