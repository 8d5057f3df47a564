"""Memory that a process releases once it has started, and again when it is idle."""

import asyncio
import ctypes
import mmap
import sys
import zlib
from pathlib import Path

import pytest

from services.process.clock import ManualClock
from services.process.memory import CHECK_S, LEAST_BYTES, MOST_CPU, IdleMemory, OwnMemory, library_mappings
from testkit.waiting import until_holds

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages are resident")


def resident_of_libraries_kb() -> int:
    mappings = library_mappings(Path("/proc/self/smaps").read_text().splitlines())
    return sum(mapping.resident_kb for mapping in mappings if not mapping.anonymous_kb)


def resident_kb(file: Path) -> int:
    lines = Path("/proc/self/smaps").read_text().splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.endswith(str(file)))
    (resident,) = (line for line in lines[at : at + 10] if line.startswith("Rss:"))
    return int(resident.split()[1])


@on_linux
def test_pages_of_libraries_leave_memory_and_come_back_when_they_are_used() -> None:
    before = resident_of_libraries_kb()
    OwnMemory().release()
    assert resident_of_libraries_kb() < before / 2
    assert zlib.crc32(b"Carillon") == 0x456BA508


@on_linux
def test_changed_pages_and_other_files_stay_as_they_are(tmp_path: Path) -> None:
    """The loader changes pages of a library, and then makes them read-only."""
    changed, untouched, other = tmp_path / "changed.so", tmp_path / "untouched.so.1", tmp_path / "data"
    maps = []
    for path in (changed, untouched, other):
        path.write_bytes(b"\1" * mmap.PAGESIZE * 2)
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        maps.append(mapped)
        if path == changed:
            mapped[0] = 2
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert bytes(mapped[:]).endswith(b"\1")
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE * 2, mmap.PROT_READ) == 0
    OwnMemory().release()
    assert maps[0][0] == 2
    assert resident_kb(untouched) == 0
    assert resident_kb(other) > 0


def test_a_system_that_hides_its_memory_figures_causes_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A directory in place of each file cannot be read, as where a container hides parts of /proc."""
    for name in ("_PAGES", "_MAPPINGS"):
        monkeypatch.setattr(f"services.process.memory.{name}", tmp_path)
    OwnMemory().release()
    assert OwnMemory().file_bytes() == 0


class ScriptedMemory:
    """The memory of a process that works and reads files as the test says."""

    def __init__(self) -> None:
        self.used_s = 0.0
        self.in_files = 10 * LEAST_BYTES
        self.releases = 0
        self.looks = 0

    def cpu_s(self) -> float:
        self.looks += 1
        return self.used_s

    def file_bytes(self) -> int:
        return self.in_files

    def release(self) -> None:
        self.in_files = 0
        self.releases += 1


async def test_memory_is_released_at_the_start_and_when_the_process_is_idle_again() -> None:
    clock, memory = ManualClock(0), ScriptedMemory()
    running = asyncio.create_task(IdleMemory(clock, memory).run(asyncio.Event()))
    await until_holds(lambda: memory.looks == 1)
    assert memory.releases == 1

    async def releases_after_check(used_s: float, file_bytes: int) -> int:
        """Let the process use CPU time and read files until the next check; return the number of releases by then."""
        memory.used_s += used_s
        memory.in_files += file_bytes
        looks = memory.looks + 2
        clock.move(CHECK_S)
        await until_holds(lambda: memory.looks == looks)
        return memory.releases

    much_s = 2 * MOST_CPU * CHECK_S
    assert await releases_after_check(0, LEAST_BYTES - 1) == 1, "too little for a release"
    assert await releases_after_check(much_s, 1) == 1, "the process works"
    assert await releases_after_check(much_s, LEAST_BYTES) == 1
    assert await releases_after_check(0, 0) == 2
    assert await releases_after_check(0, 0) == 2
    running.cancel()
