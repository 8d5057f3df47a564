"""chdb's threads have a lower priority than the threads that deliver pushes."""

import os
import sys

import pytest

from analytics.store.clickhouse import ClickHouse


@pytest.mark.skipif(sys.platform != "linux" or os.nice(0) >= 10, reason="on Linux nice is a thread's own; not nice yet")
async def test_only_the_threads_of_the_engine_have_a_lower_priority(clickhouse: ClickHouse) -> None:
    await clickhouse.rows("SELECT sum(number) FROM numbers(1000)")
    threads = [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]
    assert threads.count(10) >= 2
    assert os.nice(0) < 10
