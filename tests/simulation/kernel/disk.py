"""The disk of a simulated machine: real files, and what is left of them after a crash.

A process that was killed still holds its files open, so the next one gets a copy of them, in another directory. A kill
loses nothing that was written. A power cut also loses what was not synced: SQLite files with synchronous=NORMAL go back
to an earlier commit, and a file that was about to replace another one is torn. A process whose disk is full cannot
commit.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

FULL = "database or disk is full"
"""What SQLite says where there is no space."""

_UNFINISHED = ".new"
"""The suffix of a file that is being written, which replaces another one in the end; it is torn."""

_SQLITE = b"SQLite format 3\0"
_WAL_HEADER = 32
_FRAME_HEADER = 24
_OTHER_VERSION = 1 << 24
"""A bit that no version of a schema has set, so that it is unknown to every process."""

_SYNCED = frozenset({"offsets.db"})
"""Files of SQLite with synchronous=FULL: those of the ingestion's offsets. A power cut loses nothing of them."""

_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "CREATE"})
_SHM_BACKFILL_ATTEMPTED = 128
"""Offset in the -shm file of the number of frames that may be in the database file already."""


class Disk:
    """`path` is the directory for the files of the machine's present process."""

    def __init__(self, directory: Path, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._generation = 0
        self.path.mkdir(parents=True)

    @property
    def path(self) -> Path:
        return self._directory / str(self._generation)

    def after_stop(self) -> None:
        """Give the next process what the former one left: it was killed, or it has ended."""
        self._copy(power_cut=False)

    def after_power_cut(self) -> None:
        """Give the next process what the former one had on the disk when the machine lost its power."""
        self._copy(power_cut=True)

    def after_upgrade(self) -> None:
        """Give the next process files whose schemas are of a version that it does not know.

        Their tables are empty, so a process that uses them nevertheless has lost what they held.
        """
        self._copy(power_cut=False)
        for path in sorted(self.path.rglob("*")):
            if path.is_file() and path.suffix != _UNFINISHED and path.read_bytes()[: len(_SQLITE)] == _SQLITE:
                _make_older(path)

    def lose(self) -> None:
        """Give the next process an empty disk."""
        self._generation += 1
        self.path.mkdir()

    def _copy(self, *, power_cut: bool) -> None:
        source = self.path
        self.lose()
        for path in sorted(source.rglob("*")):
            target = self.path / path.relative_to(source)
            if path.is_dir():
                target.mkdir()
            elif path.suffix == _UNFINISHED:
                self._tear(path, target)
            elif power_cut and path.name.endswith("-wal") and path.name.removesuffix("-wal") not in _SYNCED:
                self._cut_wal(path, target)
            elif not path.name.endswith("-shm"):
                shutil.copyfile(path, target)

    def _tear(self, path: Path, target: Path) -> None:
        content = path.read_bytes()
        target.write_bytes(content[: int(self._random.random() * (len(content) + 1))])

    def _cut_wal(self, path: Path, target: Path) -> None:
        """Keep a random number of the frames, at least those that may be in the database file already.

        Without a -shm file nobody has opened the file since the latest crash, and what it held then is on the disk.
        """
        content = path.read_bytes()
        shm_path = path.with_name(path.name.removesuffix("-wal") + "-shm")
        if len(content) < _WAL_HEADER or not shm_path.exists():
            target.write_bytes(content)
            return
        frame = _FRAME_HEADER + int.from_bytes(content[8:12], "big")
        count = (len(content) - _WAL_HEADER) // frame
        shm = shm_path.read_bytes()
        first = int.from_bytes(shm[_SHM_BACKFILL_ATTEMPTED : _SHM_BACKFILL_ATTEMPTED + 4], "little")
        kept = first + int(self._random.random() * (max(0, count - first) + 1))
        target.write_bytes(content[: _WAL_HEADER + kept * frame])


def _make_older(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        (version,) = file.execute("PRAGMA user_version").fetchone()
        tables = file.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'offsets'").fetchall()
        for (table,) in tables:
            file.execute(f"DELETE FROM {table}")
        file.execute(f"PRAGMA user_version = {version | _OTHER_VERSION}")


class _Connection(sqlite3.Connection):
    """A connection that fails as SQLite does where there is no space: what it does not write is rolled back."""

    def __init__(self, *arguments: Any, is_full: Callable[[], bool], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_full = is_full

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        self._check(sql)
        return super().execute(sql, *parameters)

    def executescript(self, script: str) -> sqlite3.Cursor:
        """Run statements that make tables where there are none."""
        if self._is_full() and not super().execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            self._check("CREATE")
        return super().executescript(script)

    def _check(self, sql: str) -> None:
        """Refuse what writes to the file: a commit, and any change outside a transaction."""
        verb = _verb(sql)
        if (verb == "COMMIT" or (verb in _CHANGES and not self.in_transaction)) and self._is_full():
            raise sqlite3.OperationalError(FULL)


@cache
def _verb(sql: str) -> str:
    """Return the first word of a statement, in capitals; of each statement it is looked for once."""
    return sql.split(maxsplit=1)[0].upper()


@contextmanager
def limited_space(is_full: Callable[[], bool]) -> Iterator[None]:
    """Let SQLite's files be written inside the `with` only while `is_full`, asked before each write, says no."""
    with patch.object(sqlite3, "connect", partial(sqlite3.connect, factory=partial(_Connection, is_full=is_full))):
        yield
