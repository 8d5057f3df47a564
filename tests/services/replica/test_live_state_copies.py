"""Copies of a state that the role's own process makes: SQLite keeps its locks on the files of the live state."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from carillon.roles import role_definition
from services.domain.settings import load
from services.domain.topics import TOPICS
from services.log.port import Partition
from services.log.sqlite.log import SqliteLog
from services.replica.replay import SQLITE_SUFFIXES, ReplaySource

COPYING = "tests.services.log.copying_process"


def test_a_role_that_copied_its_state_loses_no_row_to_a_process_that_opens_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    role = subprocess.Popen(
        [sys.executable, "-m", COPYING, str(state), str(tmp_path / "archive")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert role.stdin is not None
    assert role.stdout is not None
    try:
        assert role.stdout.readline() == "copied\n"
        with closing(sqlite3.connect(state / "state.sqlite")) as beside:
            beside.execute("SELECT * FROM tally").fetchall()
        assert (state / "state.sqlite-wal").exists()
        role.stdin.write("after it\n")
        role.stdin.flush()
        assert role.stdout.readline() == "written\n"
    finally:
        role.kill()
        role.communicate()
    with closing(sqlite3.connect(state / "state.sqlite")) as left:
        assert left.execute("SELECT token FROM tally ORDER BY token").fetchall() == [
            ("after it",),
            ("before the copy",),
        ]
        assert left.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("role", ["registry", "accounts", "delivery", "scheduling"])
async def test_each_sqlite_file_of_a_role_is_known_by_its_name(role: str, tmp_path: Path) -> None:
    definition = role_definition(role)
    assert definition.replay is not None
    settings = load(definition.settings, {"CARILLON_DATA_DIR": str(tmp_path)})
    log = SqliteLog(tmp_path / "events.db", TOPICS)
    ends = {Partition(t.name, n): 0 for t in TOPICS.values() for n in range(t.partitions(settings.partitions))}
    await definition.replay.fill(settings, tmp_path / "state", ReplaySource(log, ends))
    await log.close()
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    sqlite_files = [path for path in files if path.read_bytes().startswith(b"SQLite format 3\x00")]
    assert sqlite_files
    assert {path.suffix for path in sqlite_files} <= set(SQLITE_SUFFIXES)
