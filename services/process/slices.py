"""Slices of processor time: how long Linux, from 6.12 on, lets a thread run before it chooses among the runnable ones.

A thread that wakes interrupts one with a much longer slice at once. Between equal slices it often waits for the next
tick of the system's timer, up to 4 ms, also where the other thread has a lower priority.
"""

import ctypes
import os
import struct
import sys

PROMPT_NS = 300_000
"""Slices of the process that sends the pushes: its threads run as soon as they wake."""

PATIENT_NS = 20_000_000
"""Slices of its children, which no push waits for."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, by machine: older C libraries have no function for it."""

_SCHED_ATTR = "=IIQiIQQQ"


def choose_slice(nanoseconds: int) -> None:
    """Choose the slices of this thread and of those that it starts.

    Without effect where the system lacks them, or where this thread has another scheduling policy than the usual one,
    such as a real-time one.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    if (number := _SCHED_SETATTR.get(os.uname().machine)) is not None:
        size = struct.calcsize(_SCHED_ATTR)
        attributes = struct.pack(_SCHED_ATTR, size, os.SCHED_OTHER, 0, os.nice(0), 0, nanoseconds, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
