"""The child side of a child process: its end with the parent, its priority, and its answers to the parent's checks."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping

import psutil
from prometheus_client import generate_latest

from protos.runtime.v1.process_pb2 import CheckRequest, CheckResponse, GetMetricsRequest, GetMetricsResponse
from protos.runtime.v1.process_pb2_grpc import ProcessServiceServicer
from protos.runtime.v1.processes_pb2 import ProcessStatus
from services.runtime.child.child_process import READY
from services.runtime.child.slices import PATIENT_NS, choose_slice
from services.runtime.rpc.server import Context

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
