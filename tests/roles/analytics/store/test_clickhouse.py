"""The priority of chdb's threads: lower than that of the threads that deliver pushes, unless `low_priority` is off."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_NICENESS_OF_THREADS = """
import asyncio, json, os, sys
from pathlib import Path
from analytics.store.clickhouse import ClickHouse

async def query():
    clickhouse = ClickHouse(None, Path(sys.argv[1]), low_priority=sys.argv[2] == "low")
    await clickhouse.open()
    await clickhouse.rows("SELECT sum(number) FROM numbers(1000)")
    threads = [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]
    await clickhouse.close()
    return [os.nice(0), threads]

print(json.dumps(asyncio.run(query())))
"""


async def niceness(directory: Path, priority: str) -> tuple[int, list[int]]:
    """Return the niceness of the main thread and of all threads of a process that uses chdb."""
    command = [sys.executable, "-c", _NICENESS_OF_THREADS, str(directory / "chdb"), priority]
    process = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    main, threads = json.loads(process.stdout.splitlines()[-1])
    return main, threads


@pytest.mark.skipif(sys.platform != "linux" or os.nice(0) >= 10, reason="needs priorities of threads, and a normal one")
async def test_only_the_threads_of_the_engine_have_a_lower_priority(tmp_path: Path) -> None:
    main, threads = await niceness(tmp_path, "low")
    assert threads.count(10) >= 2
    assert main < 10


@pytest.mark.skipif(sys.platform != "linux" or os.nice(0) >= 10, reason="needs priorities of threads, and a normal one")
async def test_the_engine_has_normal_priority_on_request(tmp_path: Path) -> None:
    _, threads = await niceness(tmp_path, "normal")
    assert 10 not in threads
