"""A full disk: appended records stay, refused ones leave nothing behind, and freed space is enough to go on."""

from pathlib import Path

import pytest

from services.domain.topics import DELIVERIES, TOPICS
from services.errors import UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.replica.snapshot import SnapshotFile
from services.replica.sqlite_store import SqliteStore
from testkit.faults.full_disk import full_disk

PLACE = Partition(DELIVERIES.name, 0)
LIMIT = 2**20  # bytes
DDL = "CREATE TABLE things (id INTEGER PRIMARY KEY, value BLOB NOT NULL)"


def new_record(number: int) -> NewRecord:
    return NewRecord(*PLACE, b"key", number.to_bytes(4, "big") * 10_000)


async def test_the_log_keeps_appended_records_refuses_new_ones_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    log = SqliteLog(path, TOPICS)
    answered = 0
    with full_disk(LIMIT):
        with pytest.raises(UnavailableError, match=r"events\.db cannot be written: "):
            while True:
                assert await log.append([new_record(answered)]) == [answered]
                answered += 1
        with pytest.raises(UnavailableError, match="cannot be written"):
            await log.append([new_record(answered)] * 50)
        assert await log.ends([PLACE]) == {PLACE: answered}
    assert answered > 1
    assert await log.append([new_record(answered), new_record(answered + 1)]) == [answered, answered + 1]
    await log.close()

    log = SqliteLog(path, TOPICS)
    stored = (await log.select({PLACE: 0}, 1000)).records
    await log.close()
    assert [(record.offset, record.value) for record in stored] == [
        (n, new_record(n).value) for n in range(answered + 2)
    ]


def test_a_store_keeps_committed_rows_and_recovers(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state.db", DDL)

    def change(number: int) -> None:
        store.begin()
        store.rows.execute("INSERT INTO things VALUES (?, ?)", (number, bytes(40_000)))
        store.commit({PLACE: number + 1})

    with full_disk(0), pytest.raises(UnavailableError, match=r"new\.db cannot be written: "):
        SqliteStore(tmp_path / "new.db", DDL)
    committed = 0
    with full_disk(LIMIT), pytest.raises(UnavailableError, match=r"state\.db cannot be written: "):
        while True:
            change(committed)
            committed += 1
    assert committed > 1
    assert store.offsets() == {PLACE: committed}
    change(committed)
    store.close()

    store = SqliteStore(tmp_path / "state.db", DDL)
    ids = [number for (number,) in store.rows.execute("SELECT id FROM things ORDER BY id")]
    assert (ids, store.offsets()) == (list(range(committed + 1)), {PLACE: committed + 1})
    store.close()


def test_a_snapshot_without_disk_space_leaves_the_old_one_and_no_partial_file(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "snapshot.db", 1)
    file.save({PLACE: 1}, [(b"a", b"old")])
    large = [(b"a", bytes(3 * LIMIT))]
    with full_disk(LIMIT), pytest.raises(UnavailableError, match=r"snapshot\.db cannot be written: "):
        file.save({PLACE: 2}, large)
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot.db"]
    snapshot = file.load()
    assert snapshot is not None
    assert (snapshot.offsets, snapshot.blobs) == ({PLACE: 1}, [(b"a", b"old")])
    file.save({PLACE: 2}, large)
    snapshot = file.load()
    assert snapshot is not None
    assert snapshot.offsets == {PLACE: 2}
