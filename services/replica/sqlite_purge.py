"""Takes what SQLite leaves of deleted rows out of a state's file, while the role goes on reading and writing it.

SQLite overwrites deleted rows (`secure_delete`). But where it moves rows between the pages of a table or an index, it
leaves copies of them in the unallocated part of a page, which lies between the page's header and its content. `purge`
overwrites these parts in the file itself, by the documented file format. VACUUM would do too, and keeps the role from
writing until it has copied the whole file. What makes this safe at any moment, also under kills:

- While one connection reads from a file whose write-ahead log is empty, SQLite changes the log alone, and not the file.
- Nobody reads the bytes that change.
- Pages that are in the write-ahead log behind that are done once they are in the file, while nobody can write.

It runs in a process of its own: one that closes any descriptor of a file loses all its POSIX locks on it.
"""

import os
import sqlite3
import struct
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

BUSY = 75
"""The exit code of a process that others kept from it: call again."""

MAX_ERASURES = 2**31 - 1

_FILE_HEADER = 100
_PAGES = 256
"""Pages that are read at once."""

_PAGE_HEADER = struct.Struct(">BxxHH")
_HEADER_BYTES = {2: 12, 5: 12, 10: 8, 13: 8}
"""By the type of a page of a table or an index, the length of its header; the first byte of other pages is 0."""

_MAX_PAGES = 2 << 24
"""From this number of pages on, the first byte of another page may look like such a type."""

_WAL_HEADER, _FRAME_HEADER = 32, 24
_BUSY_S = 1.0


def purge(path: Path, until: int) -> bool:
    """Purge the file, and note in it that it has nothing left of the erasures up to this offset.

    Return False if others were busy with the file: then nothing is noted.
    """
    with open(path, "r+b", buffering=0) as file, closing(_connect(path)) as reading, closing(_connect(path)) as writing:
        (page_size,) = writing.execute("PRAGMA page_size").fetchone()
        return _Purge(path, file, page_size, reading, writing).run(until)


def purged_until(connection: sqlite3.Connection) -> int:
    """Return up to which offset of `erasures` the file is purged."""
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


class _Purge:
    """One attempt at a file, with one connection that keeps it as it is, and one that keeps others from writing."""

    def __init__(
        self, path: Path, file: BinaryIO, page_size: int, reading: sqlite3.Connection, writing: sqlite3.Connection
    ) -> None:
        self._wal = path.with_name(f"{path.name}-wal")
        self._file = file
        self._page_size = page_size
        self._reading = reading
        self._writing = writing

    def run(self, until: int) -> bool:
        self._empty_wal()
        self._reading.execute("BEGIN")
        self._reading.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not self._is_wal_empty():
            return False
        pages = range(self._file.seek(0, os.SEEK_END) // self._page_size)
        if len(pages) >= _MAX_PAGES:
            raise ValueError(f"a file of {len(pages)} pages is too large")
        self._overwrite(pages)
        self._writing.execute("BEGIN IMMEDIATE")
        changed, version = self._pages_in_wal(), self._version()
        self._writing.execute("ROLLBACK")
        self._reading.execute("ROLLBACK")
        self._empty_wal()
        self._writing.execute("BEGIN IMMEDIATE")
        if not self._is_wal_empty() or self._version() != version:
            return False
        self._overwrite(changed)
        os.fdatasync(self._file.fileno())
        # The change makes the other connections forget the pages that they keep in memory.
        self._writing.execute(f"PRAGMA application_id = {until}")
        self._writing.execute("COMMIT")
        return True

    def _empty_wal(self) -> None:
        """Move the write-ahead log into the file, unless others are busy."""
        self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _is_wal_empty(self) -> bool:
        return self._wal.stat().st_size == 0

    def _version(self) -> int:
        """Return a number that changes with each change that others make."""
        return int(self._writing.execute("PRAGMA data_version").fetchone()[0])

    def _pages_in_wal(self) -> list[int]:
        """Return the pages in the write-ahead log, counted from 0."""
        frame = _FRAME_HEADER + self._page_size
        with open(self._wal, "rb") as wal:
            found = set()
            for start in range(_WAL_HEADER, self._wal.stat().st_size, frame):
                wal.seek(start)
                found.add(int.from_bytes(wal.read(4), "big") - 1)
        return sorted(found)

    def _overwrite(self, pages: Iterable[int]) -> None:
        """Overwrite what is unallocated in these pages."""
        size = self._page_size
        for first, count in _runs(pages):
            content = memoryview(os.pread(self._file.fileno(), count * size, first * size))
            for number, start in enumerate(range(0, len(content), size), first):
                self._overwrite_page(number, content[start : start + size])

    def _overwrite_page(self, number: int, page: memoryview) -> None:
        at = 0 if number else _FILE_HEADER
        kind, cells, content = _PAGE_HEADER.unpack_from(page, at)
        if kind not in _HEADER_BYTES:
            return
        begin, end = at + _HEADER_BYTES[kind] + 2 * cells, content or 65_536
        length = end - begin
        if length > 0 and page[begin:end] != (zeros := bytes(length)):
            os.pwrite(self._file.fileno(), zeros, number * self._page_size + begin)


def _runs(pages: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Yield the first number and the length of each run of ascending numbers, of at most _PAGES each."""
    first = count = 0
    for page in pages:
        if count and (page != first + count or count == _PAGES):
            yield first, count
            count = 0
        if not count:
            first = page
        count += 1
    if count:
        yield first, count


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S)
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def main() -> None:
    path, until = sys.argv[1:]
    os.nice(10)
    try:
        is_purged = purge(Path(path), int(until))
    except sqlite3.OperationalError:  # locked
        is_purged = False
    sys.exit(0 if is_purged else BUSY)


if __name__ == "__main__":
    main()
