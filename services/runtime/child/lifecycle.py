"""The child side of a child process: its end with the parent, its priority, and its answers to the parent's checks."""

import asyncio
import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable, Mapping

import psutil
from prometheus_client import generate_latest

from protos.runtime.v1.process_pb2 import CheckRequest, CheckResponse, GetMetricsRequest, GetMetricsResponse
from protos.runtime.v1.process_pb2_grpc import ProcessServiceServicer
from protos.runtime.v1.processes_pb2 import ProcessStatus
from services.runtime.child.child_process import READY
from services.runtime.rpc.server import Context

_NICENESS = 10
_SLICE_NS = 100_000
_PR_SET_PDEATHSIG = 1
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, by machine: older C libraries have no function for it."""

_SCHED_ATTR = "=IIQiIQQQ"


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
        sys.exit("the parent process has ended")


def lower_priority() -> None:
    """Lower the priority of this process at the processors, and where the system has an idle class, at the disk."""
    os.nice(_NICENESS)
    if sys.platform == "linux":
        with contextlib.suppress(psutil.Error, OSError):
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
        _shorten_slices()


def _shorten_slices() -> None:
    """Let Linux, from 6.12 on, interrupt this thread for others once it has run for _SLICE_NS.

    Otherwise even a thread of low priority runs on to the end of its slice of some milliseconds when another one wakes,
    and pushes wait for that. Threads that this one starts inherit the slice. Older systems lack the setting.
    """
    if (number := _SCHED_SETATTR.get(os.uname().machine)) is not None:
        size = struct.calcsize(_SCHED_ATTR)
        attributes = struct.pack(_SCHED_ATTR, size, os.SCHED_OTHER, 0, os.nice(0), 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


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
