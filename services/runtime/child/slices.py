"""Slices of processor time: how long Linux, from 6.12 on, lets a thread run before it chooses among the runnable ones.

A thread that wakes interrupts one with a much longer slice at once. Between equal slices it often waits for the next
tick of the system's timer, up to 4 ms, also where the other thread has a lower priority.
"""

import ctypes
import os
import struct
import sys

PROMPT_NS = 300_000
"""For a process that does a little work as soon as it wakes."""

PATIENT_NS = 20_000_000
"""For a process that has much to do, while others wait for a prompt one."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The number of the system call, by machine: older C libraries have no function for it."""

_SCHED_ATTR = "=IIQiIQQQ"


def choose_slice(nanoseconds: int) -> None:
    """Choose the slices of this thread and of those that it starts. Without effect where the system lacks them."""
    if sys.platform == "linux" and (number := _SCHED_SETATTR.get(os.uname().machine)) is not None:
        size = struct.calcsize(_SCHED_ATTR)
        attributes = struct.pack(_SCHED_ATTR, size, os.SCHED_OTHER, 0, os.nice(0), 0, nanoseconds, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
