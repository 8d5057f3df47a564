"""Purges of a state's file: nothing is left of changed rows, also under writers, readers and kills."""

import asyncio
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.process.clock import SystemClock
from services.replica import sqlite_purge
from services.replica.sqlite_purge import purge, purged_until
from services.replica.sqlite_store import SqliteStore

DDL = """
CREATE TABLE persons (token TEXT NOT NULL UNIQUE, record TEXT NOT NULL);
CREATE TABLE aliases (alias TEXT NOT NULL PRIMARY KEY, token TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE long_records (record BLOB NOT NULL);
"""
MARK = b"mark-"
PERSONS = 600
KILLS = 12


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """A store with the stubs of persons whose rows have grown, so that SQLite moved them between pages."""
    store = SqliteStore(tmp_path / "state.sqlite", DDL)
    chance = random.Random(46)
    for number in range(PERSONS):
        put(store, number, chance)
        for earlier in chance.sample(range(number + 1), min(number + 1, 2)):
            grow(store, earlier, chance)
    for number in range(PERSONS):
        erase(store, number)
    yield store
    store.close()


def token(number: int) -> str:
    return f"{MARK.decode()}{random.Random(number).randbytes(16).hex()}"


def put(store: SqliteStore, number: int, chance: random.Random) -> None:
    store.begin()
    store.rows.execute("INSERT INTO persons (rowid, token, record) VALUES (?, ?, ?)", (number, token(number), "new"))
    store.rows.execute("INSERT INTO aliases VALUES (?, ?)", (token(-number - 1), token(number)))
    if number % 40 == 0:
        record = token(number).encode() * chance.randrange(100, 400)
        store.rows.execute("INSERT INTO long_records (rowid, record) VALUES (?, ?)", (number, record))
    store.commit({})


def grow(store: SqliteStore, number: int, chance: random.Random) -> None:
    store.begin()
    record = token(number) * chance.randrange(1, 12)
    store.rows.execute("UPDATE persons SET record = ? WHERE rowid = ?", (record, number))
    store.commit({})


def erase(store: SqliteStore, number: int) -> None:
    store.begin()
    store.rows.execute("UPDATE persons SET token = ?, record = '' WHERE rowid = ?", (f"~{number}", number))
    store.rows.execute("DELETE FROM aliases WHERE alias = ?", (token(-number - 1),))
    store.rows.execute("DELETE FROM long_records WHERE rowid = ?", (number,))
    store.commit({})


def held(store: SqliteStore) -> bytes:
    return b"".join(path.read_bytes() for path in store.path.parent.iterdir())


def left_in_file(store: SqliteStore) -> bool:
    store.rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return MARK in store.path.read_bytes()


def check(store: SqliteStore, digest: str) -> None:
    """Check that the file is whole, with the same rows, for a connection that has read nothing yet too."""
    assert store.rows.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert store.digest() == digest
    with closing(sqlite3.connect(store.path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert other.execute("SELECT count(*) FROM persons").fetchone() == (PERSONS,)


def test_nothing_is_left_of_rows_that_moved(store: SqliteStore) -> None:
    digest = store.digest()
    assert left_in_file(store), "SQLite has left nothing, so this shows nothing"
    assert purge(store.path, 7)
    assert MARK not in held(store)
    check(store, digest)
    with closing(sqlite3.connect(store.path)) as other:
        assert purged_until(other) == 7
    grow(store, 5, random.Random(1))
    erase(store, 5)
    assert purge(store.path, 8)
    assert MARK not in held(store)
    reopened = SqliteStore(store.path, DDL)
    assert reopened.purged_until == 8
    reopened.close()


def test_pages_that_were_read_before_and_written_during_a_purge_are_purged(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer keeps pages in memory: they come back with all that was left in them."""
    assert left_in_file(store)
    store.rows.execute("SELECT sum(length(record)) FROM persons").fetchone()
    overwrite = sqlite_purge._Purge._overwrite
    passes: list[int] = []

    def write_meanwhile(self: sqlite_purge._Purge, pages: "range | list[int]") -> None:
        if not passes:
            store.begin()
            store.rows.execute("UPDATE persons SET record = 'x'")
            store.commit({})
            store.rows.execute("PRAGMA wal_checkpoint(PASSIVE)")
        passes.append(len(pages))
        overwrite(self, pages)

    monkeypatch.setattr(sqlite_purge._Purge, "_overwrite", write_meanwhile)
    assert purge(store.path, 7)
    assert passes[1] > 1
    assert MARK not in held(store)
    store.begin()
    store.rows.execute("UPDATE persons SET record = 'y'")
    store.commit({})
    assert MARK not in held(store), "the writer has kept a page"
    assert store.rows.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_purge_that_others_keep_from_it_notes_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_purge, "_BUSY_S", 0.01)
    reading = store.reading()
    reading.execute("BEGIN")
    reading.execute("SELECT count(*) FROM persons").fetchone()
    grow(store, 5, random.Random(1))
    erase(store, 5)
    assert not purge(store.path, 7)
    assert purged_until(store.rows) == 0
    reading.close()
    assert purge(store.path, 7)


def test_what_another_writes_between_the_two_locks_begins_anew(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_wal = sqlite_purge._Purge._empty_wal
    calls: list[int] = []

    def write_before(self: sqlite_purge._Purge) -> None:
        calls.append(1)
        if len(calls) == 2:
            store.begin()
            store.rows.execute("UPDATE persons SET record = 'x' WHERE rowid = 1")
            store.commit({})
        empty_wal(self)

    monkeypatch.setattr(sqlite_purge._Purge, "_empty_wal", write_before)
    assert not purge(store.path, 7)
    assert purged_until(store.rows) == 0
    assert purge(store.path, 7)


async def test_kills_and_a_writer_leave_the_file_whole(store: SqliteStore) -> None:
    """Processes that purge are killed at random moments while rows grow and are erased."""
    chance, clock = random.Random(47), SystemClock()
    for _ in range(KILLS):
        command = [sys.executable, "-m", sqlite_purge.__name__, str(store.path), "7"]
        purging = await asyncio.create_subprocess_exec(*command)
        until_ms = clock.now_ms() + chance.randrange(40, 200)
        while clock.now_ms() < until_ms and purging.returncode is None:
            number = chance.randrange(PERSONS)
            grow(store, number, chance)
            erase(store, number)
            await asyncio.sleep(0)
        if purging.returncode is None:
            purging.kill()
        await purging.wait()
    digest = store.digest()
    assert purge(store.path, 8)
    assert MARK not in held(store)
    check(store, digest)


def test_the_process_says_that_others_are_busy(store: SqliteStore) -> None:
    store.begin()
    command = [sys.executable, "-m", sqlite_purge.__name__, str(store.path), "7"]
    assert subprocess.run(command, check=False).returncode == sqlite_purge.BUSY
    store.rollback()
    assert subprocess.run(command, check=False).returncode == 0
