"""chdb in the process: its threads have a lower priority than those that deliver pushes; files are read ahead.

Files of exports that a killed process left are removed.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analytics.store.clickhouse import ClickHouse, read_ahead
from analytics.store.engine import Engine, new_export_file
from services.errors import ConflictError
from tests.analytics.service import value

DISK_READ_AHEAD_BYTES = 128 * 1024
"""What Linux reads of a file for one piece of advice, with the usual read_ahead_kb of a disk."""

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


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The files that the operating system was advised to read ahead, and how many of their bytes from the first on."""
    until: dict[str, int] = {}

    def note(descriptor: int, start: int, size: int, advice: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        assert (start, advice) == (until.get(name, 0), os.POSIX_FADV_WILLNEED)
        assert size <= DISK_READ_AHEAD_BYTES, "the system would read this much alone"
        until[name] = start + size

    monkeypatch.setattr(os, "posix_fadvise", note)
    return until


@pytest.mark.skipif(sys.platform != "linux", reason="needs posix_fadvise and /proc")
async def test_the_columns_of_a_table_are_read_ahead(clickhouse: ClickHouse, advised: dict[str, int]) -> None:
    await clickhouse.command("INSERT INTO device_tokens (appkey, device, token) SELECT 'a', 1, repeat('t', 100000)")
    await clickhouse.read_ahead("device_tokens")
    assert "data.bin" in advised or {"appkey.bin", "device.bin", "token.bin"} <= set(advised)


@pytest.mark.skipif(sys.platform != "linux", reason="needs posix_fadvise and /proc")
def test_reading_ahead_has_a_limit_and_passes_over_merged_parts(
    tmp_path: Path, advised: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.store.clickhouse.MOST_BYTES", 25)
    for name in ("a.bin", "a.mrk", "b.bin", "c.bin"):
        (tmp_path / name).write_bytes(bytes(10))
    read_ahead([tmp_path / "merged away", tmp_path])
    assert list(advised) == ["a.bin", "b.bin"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs posix_fadvise and /proc")
def test_all_of_a_large_file_is_read_ahead(tmp_path: Path, advised: dict[str, int]) -> None:
    size = 3 * DISK_READ_AHEAD_BYTES + 1
    (tmp_path / "a.bin").write_bytes(bytes(size))
    read_ahead([tmp_path])
    assert advised["a.bin"] >= size


def test_files_of_exports_are_removed_when_the_store_is_opened(tmp_path: Path) -> None:
    """A process that cannot open the store leaves those of the process that has it open."""
    path = tmp_path / "chdb"
    left = Path(new_export_file(path).name)
    left.write_bytes(b"cut off")
    others = [tmp_path / "offsets.db", tmp_path / "exports"]
    others[0].touch()
    others[1].mkdir()
    engine, second = (Engine(None, path, "carillon", low_priority=False) for _ in range(2))
    engine.open()
    assert not left.exists()
    assert all(other.exists() for other in others)

    with new_export_file(path) as running:
        with pytest.raises(ConflictError):
            second.open()
        engine.open()
        assert Path(running.name).exists()
    second.release()
    engine.release()


async def test_retried_inserts_are_dropped_in_materialized_views_too_whatever_the_default(
    clickhouse: ClickHouse,
) -> None:
    setting = "SELECT (value, changed) FROM system.settings WHERE name = '{}'"
    name = "deduplicate_blocks_in_dependent_materialized_views"
    assert await value(clickhouse, setting.format(name)) == ("1", 1)
