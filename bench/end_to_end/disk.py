"""The floor of the log's commits: durable writes of two pages, as many a second as at 300 pushes a second.

    python -m bench.end_to_end.disk DIRECTORY SECONDS

Prints a JSON object with percentiles of the time of a write and its fdatasync.
"""

import json
import os
import sys
import tempfile
import time

from bench.end_to_end.measured import percentile

_PAGES = bytes(8192)
_WRITES_PER_S = 600
_FILE_BYTES = 16 * 1024 * 1024


def durable_writes_ms(directory: str, seconds: float) -> list[float]:
    """Return the time of each write, in order. The file's blocks are allocated first, as in a used write-ahead log."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(_FILE_BYTES), 0)
        os.fsync(descriptor)
        first = time.perf_counter()
        for number in range(int(seconds * _WRITES_PER_S)):
            time.sleep(max(0.0, first + number / _WRITES_PER_S - time.perf_counter()))
            started = time.perf_counter()
            os.pwrite(descriptor, _PAGES, number * len(_PAGES) % _FILE_BYTES)
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - started) * 1000)
    return times


def main() -> None:
    times = durable_writes_ms(sys.argv[1], float(sys.argv[2]))
    seconds = [sorted(times[at : at + _WRITES_PER_S]) for at in range(0, len(times), _WRITES_PER_S)]
    ordered = sorted(times)
    result = {
        "p50_ms": percentile(ordered, 0.5),
        "p99_ms": percentile(ordered, 0.99),
        "max_ms": ordered[-1],
        "worst_second_p99_ms": max(percentile(second, 0.99) for second in seconds),
    }
    print(json.dumps({name: round(ms, 2) for name, ms in result.items()}))


if __name__ == "__main__":
    main()
