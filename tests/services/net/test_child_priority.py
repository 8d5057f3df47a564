"""The priority of a child process, and the slices of it and of its parent."""

import os
import subprocess
import sys

import pytest

THREADS = """
import ctypes, os, struct, threading
from services.net.child import lower_priority
from services.process.slices import PROMPT_NS, choose_slice

def attributes():
    found = ctypes.create_string_buffer(48)
    ctypes.CDLL(None).syscall({"x86_64": 315, "aarch64": 275}[os.uname().machine], 0, found, 48, 0)
    size, policy, flags, nice, priority, slice_ns, *rest = struct.unpack("=IIQiIQQQ", found.raw)
    print(policy, nice, slice_ns)

attributes()
choose_slice(PROMPT_NS)
attributes()
lower_priority()
attributes()
thread = threading.Thread(target=attributes)
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs the scheduling of Linux")
def test_a_child_and_its_threads_have_longer_slices_than_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    before, parent, child, thread = ([int(number) for number in line.split()] for line in done.stdout.splitlines())
    if before[2] == 0:
        pytest.skip("the kernel has no slices that a process chooses")
    assert parent == [*before[:2], 300_000]
    assert child == thread == [before[0], min(before[1] + 10, 19), 20_000_000]


POLICIES = """
import os
from services.net.child import lower_priority
from services.process.slices import PROMPT_NS, choose_slice

os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
choose_slice(PROMPT_NS)
print(os.sched_getscheduler(0))
lower_priority()
print(os.sched_getscheduler(0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs the scheduling of Linux")
def test_another_scheduling_policy_is_kept_by_the_parent_and_not_by_a_child() -> None:
    done = subprocess.run([sys.executable, "-c", POLICIES], capture_output=True, text=True, check=True)
    assert [int(line) for line in done.stdout.splitlines()] == [os.SCHED_BATCH, os.SCHED_OTHER]
