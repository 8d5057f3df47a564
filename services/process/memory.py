"""Memory of a long-running process: garbage is collected rarely, and an idle process releases unused memory."""

import asyncio
import ctypes
import gc
import mmap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from services.process.clock import Clock

CHECK_S = 10
MOST_CPU = 0.02
"""An idle process takes no more than this share of a core."""

LEAST_BYTES = 16 * 1024 * 1024
"""Memory is released once this many bytes of files are in memory again; less is not worth it."""

_YOUNG = 10_000
"""Objects made and not freed after which the youngest generation is collected. A collection of 50,000 delays
everything for 15 ms if all are in use, and for 70 ms if all are garbage."""

_MAPPINGS = Path("/proc/self/smaps")
_PAGES = Path("/proc/self/statm")
_PAGE_BYTES = mmap.PAGESIZE
_MADV_DONTNEED = 4


def collect_rarely() -> None:
    """Collect garbage rarely; to be called before the process restores its state.

    Python's defaults scan all objects again and again while millions of them are restored, for half of the start's
    time; and later, at a few hundred pushes a second, for two thirds of the event loop's. Collections are small rather
    than few, because each is a pause. The longest one, of all objects, comes after 10 million new objects.
    """
    gc.set_threshold(_YOUNG, 5, 200)


def freeze_startup_objects() -> None:
    """Exclude all present objects from garbage collection; to be called once the process is ready."""
    gc.collect()
    gc.freeze()
    collect_rarely()


class ReleasableMemory(Protocol):
    """The CPU time of a process in seconds, the bytes of files in its memory, and the release of unused memory."""

    def cpu_s(self) -> float: ...

    def file_bytes(self) -> int: ...

    def release(self) -> None: ...


class OwnMemory:
    """The memory of this process. On a system without the files of Linux in /proc, nothing is released."""

    def cpu_s(self) -> float:
        return time.process_time()

    def file_bytes(self) -> int:
        pages = _read(_PAGES)
        return int(pages.split()[2]) * _PAGE_BYTES if pages else 0

    def release(self) -> None:
        """Return free memory to the system, and the memory pages of libraries, most of which were needed at the start
        alone.

        The system maps each page of a library again when it is used, from its page cache, in about a microsecond.
        """
        mappings = _read(_MAPPINGS)
        if not mappings:
            return
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for mapping in library_mappings(mappings.splitlines()):
            if not mapping.anonymous_kb:
                libc.madvise(mapping.start, mapping.size, _MADV_DONTNEED)


class IdleMemory:
    """Service that releases memory at its start, and when the process is idle and holds LEAST_BYTES more of files."""

    name = "memory"

    def __init__(self, clock: Clock, memory: ReleasableMemory) -> None:
        self._clock = clock
        self._memory = memory

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            await asyncio.to_thread(self._memory.release)
            released = self._memory.file_bytes()
            while not (await self._is_idle() and self._memory.file_bytes() - released >= LEAST_BYTES):
                """Each turn takes CHECK_S."""

    async def _is_idle(self) -> bool:
        used_s = self._memory.cpu_s()
        await self._clock.sleep_until(self._clock.now_ms() + CHECK_S * 1000)
        return self._memory.cpu_s() - used_s <= MOST_CPU * CHECK_S


class Mapping(NamedTuple):
    """A read-only mapping of a library's file; pages that the process has changed before are anonymous."""

    start: int
    size: int
    resident_kb: int
    anonymous_kb: int


def library_mappings(smaps: Iterable[str]) -> Iterator[Mapping]:
    """Yield the read-only mappings of shared libraries among the lines of /proc/PID/smaps.

    Libraries stay loaded. Other files are left out: their addresses may belong to something else a moment later.
    """
    fields: dict[str, int] = {}
    bounds: tuple[int, int] | None = None
    for line in [*smaps, "0-0 ---p"]:
        name, _, value = line.partition(":")
        if " " not in name:
            fields[name] = int(value.split()[0]) if value.endswith("kB") else 0
            continue
        if bounds:
            yield Mapping(bounds[0], bounds[1] - bounds[0], fields["Rss"], fields["Anonymous"])
        first, last = (int(address, 16) for address in line.split()[0].split("-"))
        is_library = line.split()[1] in ("r--p", "r-xp") and ".so" in line.rpartition("/")[2]
        bounds = (first, last) if is_library else None


def _read(file: Path) -> str:
    """Return the text of a file of /proc; "" where there is none or it may not be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
