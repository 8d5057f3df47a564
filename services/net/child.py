"""A child process and its parent: start, checks, restarts, priority, and the child's end with its parent."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, Popen
from typing import Any

import psutil
from prometheus_client import Gauge, generate_latest

from protos.runtime.v1.process_pb2 import CheckRequest, CheckResponse, GetMetricsRequest, GetMetricsResponse
from protos.runtime.v1.process_pb2_grpc import ProcessServiceServicer, ProcessServiceStub
from protos.runtime.v1.processes_pb2 import ProcessStatus
from services.errors import CarillonError
from services.net.rpc.channel import Channel
from services.net.rpc.server import Context
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import CHILD_RESTARTS, CHILD_UP
from services.process.slices import PATIENT_NS, choose_slice

READY = b"ready\n"
"""The line that the child writes to its standard output when it is ready."""

CHECK_S = 5
SILENT_CHECKS = 12
"""Failed checks in a row after which the child is killed: a minute. Checks are counted instead of time, because the
child has not failed while the machine was suspended."""

AWAY_CHECKS = 3
"""Failed checks in a row after which a ready child counts as away, until it answers well again or is killed."""

STARTING_CHECKS = 36
"""Failed checks in a row after which a child that has neither become ready nor answered yet is killed: 3 minutes,
because it imports its modules."""

_METRICS_S = 2
_READ_BYTES = 65_536
_STOPPED_WITHIN_S = 20
_FIRST_RETRY_S = 1
_LAST_RETRY_S = 60


class ChildProcess:
    """Service that runs a command as a child process, whose absence stops no other service of the parent.

    The child stops when its standard input ends, serves ProcessService on the channel, and writes READY to its standard
    output; anything else that it writes there is printed. A child that ends, or is killed because it does not answer,
    is started again after a back-off of up to a minute.
    """

    def __init__(
        self, name: str, command: Sequence[str], channel: Channel, clock: Clock, files: Sequence[int] = ()
    ) -> None:
        """`files`: open files of this process that the child has too, under the same numbers."""
        self.name = name
        self.on_up: Callable[[bool], None] = lambda is_up: None
        """Called with True when the child has become ready or answers again, and with False when it is away."""

        self.settled = asyncio.Event()
        """Set once the child has been ready, or has ended, for the first time."""

        self.status: ProcessStatus | None = None
        """The child's status in its latest answer; None while it does not answer."""

        self.pid: int | None = None
        self._begun: Popen[bytes] | None = None
        self._allowed_checks = STARTING_CHECKS
        self._missed = 0
        self._is_ready = False
        self._is_up = False
        self._command = command
        self._files = files
        self._process_service = ProcessServiceStub(channel)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._up: Gauge = CHILD_UP.labels(name)

    def begin(self) -> None:
        """Start the child before `run`, which then supervises it: it imports its modules while the parent does."""
        with contextlib.suppress(OSError):  # `run` tries again and logs the error
            self._begun = self._start()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        wait_s = _FIRST_RETRY_S
        while True:
            started_ms = self._clock.now_ms()
            why = await self._run_once()
            if self._clock.now_ms() - started_ms > _LAST_RETRY_S * 1000:
                wait_s = _FIRST_RETRY_S
            logger.error("a child process has ended; it is started again", process=self.name, why=why, in_s=wait_s)
            CHILD_RESTARTS.labels(self.name).inc()
            self.settled.set()
            await self._clock.sleep_until(self._clock.now_ms() + wait_s * 1000)
            wait_s = min(wait_s * 2, _LAST_RETRY_S)

    async def metrics(self) -> str:
        """Return the metrics of the child in the text format of Prometheus; empty while it does not answer."""
        try:
            return str((await self._process_service.GetMetrics(GetMetricsRequest(), timeout=_METRICS_S)).text)
        except CarillonError:
            return ""

    async def _run_once(self) -> str:
        """Run the child until it ends; return why, in words."""
        try:
            process, self._begun = self._begun or self._start(), None
        except OSError as error:
            return f"it cannot be started: {error}"
        self.pid = process.pid
        self._allowed_checks = STARTING_CHECKS
        loop = asyncio.get_running_loop()
        ending = loop.run_in_executor(self._thread, self._watch, process, loop)
        checking = asyncio.create_task(self._check())
        try:
            waits: list[asyncio.Future[Any]] = [ending, checking]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return _ending(ending.result()) if ending.done() else f"it was killed: {checking.result()}"
        except asyncio.CancelledError:
            await self._stop(process, ending)
            raise
        finally:
            checking.cancel()
            process.kill()
            await ending
            self._set_ready(False)
            self.pid = self.status = None

    def _start(self) -> "Popen[bytes]":
        """Start the child in this thread: the child ends with the thread that started it.

        Popen does not copy this process (vfork). Ctrl-C of a terminal reaches only the parent's process group. The
        child stays in the parent's session: Linux divides the processors evenly between sessions (sched_autogroup), so
        in a session of its own the child's niceness would do nothing.
        """
        return Popen(self._command, stdin=PIPE, stdout=PIPE, process_group=0, pass_fds=self._files)  # noqa: S603

    def _watch(self, process: "Popen[bytes]", loop: asyncio.AbstractEventLoop) -> int:
        """Note the child's readiness and print its output until it ends; return its exit code. Runs in a thread."""
        assert process.stdout is not None
        pending = b""
        while written := os.read(process.stdout.fileno(), _READ_BYTES):
            lines = (pending + written).splitlines(keepends=True)
            if READY in lines:
                loop.call_soon_threadsafe(self._note_ready)
            # The beginning of a READY, which one read may not have whole, waits for the rest.
            pending = lines.pop() if READY.startswith(lines[-1]) and lines[-1] != READY else b""
            _print(b"".join(line for line in lines if line != READY))
        _print(pending)
        return process.wait()

    def _note_ready(self) -> None:
        self._allowed_checks = SILENT_CHECKS
        self._missed = 0  # Checks that failed while the child was starting say nothing of it now.
        self._set_ready(True)
        self.settled.set()

    def _set_ready(self, is_ready: bool) -> None:
        self._is_ready = is_ready
        self._up.set(is_ready)
        self._tell_up(is_ready)

    def _tell_up(self, is_up: bool) -> None:
        if is_up != self._is_up:
            self._is_up = is_up
            self.on_up(is_up)

    async def _check(self) -> str:
        """Check the child at intervals; return the problem once too many checks in a row have failed."""
        self._missed = 0
        asking: asyncio.Task[CheckResponse] | None = None
        try:
            while True:
                if asking is None:
                    asking = asyncio.create_task(self._ask())
                await self._clock.sleep_until(self._clock.now_ms() + CHECK_S * 1000)
                problem = _problem(asking)
                if asking.done():
                    asking = None
                else:
                    self.status = None
                self._missed = self._missed + 1 if problem else 0
                self._tell_up(self._is_ready and self._missed < AWAY_CHECKS)
                if not problem:
                    self._allowed_checks = SILENT_CHECKS
                elif self._missed >= self._allowed_checks:
                    return problem
        finally:
            if asking is not None:
                asking.cancel()

    async def _ask(self) -> CheckResponse:
        answer: CheckResponse = await self._process_service.Check(CheckRequest(), timeout=STARTING_CHECKS * CHECK_S)
        self.status = answer.status
        return answer

    async def _stop(self, process: "Popen[bytes]", ending: "asyncio.Future[int]") -> None:
        """Tell the child to stop by the end of its standard input, and wait for it."""
        assert process.stdin is not None
        process.stdin.close()
        done, _ = await asyncio.wait([ending], timeout=_STOPPED_WITHIN_S)
        if not done:
            logger.error("a child process did not stop in time and is killed", process=self.name)


class ChildReadiness:
    """Service that is ready once the child is ready, has ended or takes too long: the parent starts without it then."""

    def __init__(self, child: ChildProcess, at_most_s: float) -> None:
        self.name = f"readiness of {child.name}"
        self._child = child
        self._at_most_s = at_most_s

    async def run(self, ready: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._at_most_s):
                await self._child.settled.wait()
        except TimeoutError:
            logger.error("the service starts without a child process, which is not ready", process=self._child.name)
        ready.set()
        await asyncio.Event().wait()


def _print(printed: bytes) -> None:
    if printed:
        sys.stdout.write(printed.decode(errors="replace"))
        sys.stdout.flush()


def _ending(code: int) -> str:
    """Describe the exit code; a negative one is a signal."""
    if code >= 0:
        return f"it ended with code {code}"
    try:
        return f"it ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it ended by signal {-code}"


def _problem(asking: "asyncio.Task[CheckResponse]") -> str:
    """Return what is wrong, from the child's answer or the lack of one; empty when nothing is."""
    if not asking.done():
        return "it does not answer"
    if error := asking.exception():
        return f"it does not answer: {error}"
    return "; ".join(f"{part} {problem}" for part, problem in asking.result().problems.items())


# The child's side: its end with the parent, its priority, and its answers to the parent's checks.

_NICENESS = 10
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; ignore SIGINT and SIGTERM.

    A terminal and a service manager send these signals to the parent too, which then stops this process: see
    `stop_is_asked`.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, where it can (Linux); exit if the parent has ended.

    The kernel does so whatever this process is doing: a busy or stopped event loop would notice nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def lower_priority() -> None:
    """Lower the priority of this process at the processors, and where the system has an idle class, at the disk.

    A scheduling policy of the parent's own, such as a real-time one, is not kept. The slices become longer than the
    parent's, whose threads then interrupt this process as soon as they wake.
    """
    os.nice(_NICENESS)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        with contextlib.suppress(psutil.Error, OSError):
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    choose_slice(PATIENT_NS)


async def stop_is_asked(stopping: asyncio.Event) -> None:
    """Set the event when standard input ends: the parent asks this process to stop, or has ended."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    stopping.set()


def tell_ready() -> None:
    """Tell the parent that this process is ready."""
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()


class ProcessServicer(ProcessServiceServicer):
    """Answers the parent's checks. `problems` returns what is wrong in this process, by the name of the part."""

    def __init__(self, problems: Callable[[], Mapping[str, str]], status: Callable[[], ProcessStatus]) -> None:
        self._problems = problems
        self._status = status

    async def Check(self, request: CheckRequest, context: Context) -> CheckResponse:
        return CheckResponse(problems=self._problems(), status=self._status())

    async def GetMetrics(self, request: GetMetricsRequest, context: Context) -> GetMetricsResponse:
        return GetMetricsResponse(text=generate_latest().decode())
