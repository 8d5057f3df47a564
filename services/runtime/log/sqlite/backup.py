"""Copies of the embedded log, which may be taken while a process writes it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from services.runtime.errors import CarillonError
from services.runtime.log.durable import make_durable
from services.runtime.log.port import Partition
from services.runtime.log.sqlite.file import connect
from services.runtime.log.sqlite.trimming import stored_begins


def copy_log(source: Path, target: Path) -> dict[Partition, int]:
    """Copy the log, as it is at one moment during the call, to a new file; checked and durable on return.

    Return the first offset of each partition of the copy from which records were removed, which are in the archive.
    The process that writes the log goes on meanwhile. The copy is one file without a write-ahead log beside it.
    CarillonError: the source cannot be read or is damaged, or the target cannot be written.
    """
    try:
        target.touch(mode=0o600, exist_ok=False)
        with closing(connect(source, read_only=True)) as reading, closing(sqlite3.connect(target)) as copy:
            reading.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            begins = stored_begins(copy)
        for path in (target, target.parent):
            make_durable(path)
    except (OSError, sqlite3.Error) as error:
        raise CarillonError(f"the event log {source} cannot be copied to {target}: {error}") from error
    if verdict != "ok":
        raise CarillonError(f"the event log {source} is damaged: {verdict}")
    return begins
