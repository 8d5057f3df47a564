"""A process of a role that writes its state, copies it to an archive, and writes on until it is killed.

python -m tests.services.log.copying_process STATE ARCHIVE. It prints a line after the copy, and then writes
a row for each line that it reads.
"""

import sys
from pathlib import Path

from services.log.archive.directory import ArchiveDirectory
from services.replica.sqlite_store import SqliteStore
from services.replica.state_copies import StateCopies
from tests.services.replica.tally_role import DDL


def main(state: Path, archive: Path) -> None:
    store = SqliteStore(state / "state.sqlite", DDL)
    _write(store, "before the copy")
    StateCopies(ArchiveDirectory(archive), state, "").save()
    print("copied", flush=True)
    for line in sys.stdin:
        _write(store, line.rstrip())
        print("written", flush=True)


def _write(store: SqliteStore, token: str) -> None:
    store.begin()
    store.rows.execute("INSERT INTO tally VALUES (?, 1)", (token,))
    store.commit({})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
