"""Copies of a role's state in the archive: in a directory and in an S3-compatible store."""

import asyncio
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import ConflictError, UnavailableError
from services.log.archive.bucket import ArchiveBucket
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.store import ArchiveStore
from services.log.identity import LOG_IDENTITY_FILE
from services.process.clock import ManualClock
from services.replica.sqlite_store import SqliteStore
from services.replica.state_copies import StateCopies, StateSaver
from testkit.installation.object_store import BUCKET, object_store
from tests.services.replica.tally_role import COMMANDS, DDL

LOG = "cluster-1"
NAME = "registry-0-of-2"
HOUR_MS = 3_600_000


@pytest.fixture(params=["directory", "bucket"])
def archive(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveStore]:
    if request.param == "directory":
        yield ArchiveDirectory(tmp_path / "archive")
        return
    with object_store() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield ArchiveBucket(f"s3://{BUCKET}/carillon")


class Machine:
    """A machine's data directory, with the state of one role instance."""

    def __init__(self, data: Path, archive: ArchiveStore, log: str = LOG) -> None:
        self.directory = data / NAME
        self.directory.mkdir(parents=True)
        (self.directory / "running.lock").touch()
        (self.directory / "place").write_text(f"place of {data.name}")
        self.copies = StateCopies(archive, self.directory, log)

    def opened(self) -> SqliteStore:
        return SqliteStore(self.directory / "state.db", DDL)

    def write(self, token: str, offset: int) -> None:
        """Apply a record as the role does; the first one also notes the log."""
        (self.directory / LOG_IDENTITY_FILE).write_text(LOG)
        store = self.opened()
        store.begin()
        store.rows.execute("INSERT INTO tally VALUES (?, 1)", (token,))
        store.commit({COMMANDS[0]: offset + 1})
        store.rows.close()

    def state(self) -> tuple[list[str], dict[int, int]]:
        """Return the tokens, and the next offset of each partition."""
        store = self.opened()
        tokens = [token for (token,) in store.rows.execute("SELECT token FROM tally ORDER BY token")]
        offsets = {partition.number: offset for partition, offset in store.offsets().items()}
        store.rows.close()
        return tokens, offsets

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.directory.iterdir()}


def test_a_new_machine_takes_the_newest_copy(archive: ArchiveStore, tmp_path: Path) -> None:
    old, new = Machine(tmp_path / "old", archive), Machine(tmp_path / "new", archive)
    assert new.copies.saved_ms() is None
    assert not new.copies.take()
    for offset, token in enumerate("ab"):
        old.write(token, offset)
        old.copies.save()
    old.write("c", 2)
    assert new.copies.saved_ms() is not None
    assert new.copies.take()
    assert new.state() == (["a", "b"], {0: 2})
    assert new.files()["place"] == b"place of new"
    assert {path.name for path in tmp_path.rglob("*") if "unfinished" in path.name} == set()
    assert [path.name for path in (tmp_path / "new").iterdir()] == [NAME]


def test_a_copy_is_whole_while_the_role_writes(archive: ArchiveStore, tmp_path: Path) -> None:
    old, new = Machine(tmp_path / "old", archive), Machine(tmp_path / "new", archive)
    old.write("a", 0)
    store = old.opened()
    store.begin()
    store.rows.execute("INSERT INTO tally VALUES ('half', 1)")
    old.copies.save()
    store.rows.close()
    assert new.copies.take()
    assert new.state() == (["a"], {0: 1})


def test_a_machine_with_a_state_keeps_it(archive: ArchiveStore, tmp_path: Path) -> None:
    old, other = Machine(tmp_path / "old", archive), Machine(tmp_path / "other", archive)
    old.write("a", 0)
    old.copies.save()
    other.write("b", 5)
    before = other.files()
    assert not other.copies.take()
    assert other.files() == before


def test_a_process_that_was_killed_while_it_took_a_copy_does_it_again(
    archive: ArchiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Machine(tmp_path / "old", archive), Machine(tmp_path / "new", archive)
    old.write("a", 0)
    old.copies.save()
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path.name == LOG_IDENTITY_FILE:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        new.copies.take()
    assert LOG_IDENTITY_FILE not in new.files()
    old.write("b", 1)
    old.copies.save()
    assert new.copies.take()
    assert new.state() == (["a", "b"], {0: 2})


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "data", ArchiveDirectory(tmp_path / "archive"))
    machine.write("a", 0)
    left = tmp_path / "data" / f"{NAME}.copying"
    for clean_up in (machine.copies.take, machine.copies.save):
        left.mkdir()
        (left / "half").touch()
        clean_up()
        assert not left.exists()


def test_a_copy_of_another_log_or_a_damaged_one_is_left_alone(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")
    old = Machine(tmp_path / "old", archive)
    old.write("a", 0)
    old.copies.save()
    other = Machine(tmp_path / "other", archive, log="cluster-2")
    before = other.files()
    assert not other.copies.take()
    file = tmp_path / "archive" / "states" / f"{NAME}.tar.gz"
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[-8] ^= 1  # a bit of the checksum at the end, as if the content had changed
    damages = (
        whole[: len(whole) // 2],
        b"",
        b"no archive at all",
        whole[:20] + b"\x00" * 20 + whole[40:],
        bytes(changed),
    )
    for number, damaged in enumerate(damages):
        file.write_bytes(damaged)
        new = Machine(tmp_path / f"new{number}", archive)
        assert not new.copies.take()
        assert set(new.files()) == {"running.lock", "place"}
    assert other.files() == before


def test_a_copy_writes_nothing_outside_the_directory(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")
    outside = tmp_path / "evil"
    outside.write_text("from a copy")
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(outside, "../../../escaped")
    archive.put_file(f"{NAME}.tar.gz", packed)
    new = Machine(tmp_path / "new", archive)
    assert not new.copies.take()
    assert set(new.files()) == {"running.lock", "place"}
    assert not list(tmp_path.rglob("escaped"))


def test_an_archive_that_does_not_work_keeps_the_former_copy(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")
    old = Machine(tmp_path / "old", archive)
    old.write("a", 0)
    old.copies.save()
    with pytest.raises(ConflictError, match="has no file states/other"):
        archive.get_file("other", tmp_path / "got")
    (tmp_path / "file").touch()
    broken = Machine(tmp_path / "broken", ArchiveDirectory(tmp_path / "file"))
    broken.write("b", 0)
    with pytest.raises(UnavailableError, match="does not work"):
        broken.copies.save()
    assert [path.name for path in broken.directory.parent.iterdir()] == [NAME]


def test_a_state_that_cannot_be_copied_keeps_the_former_copy(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")
    old = Machine(tmp_path / "old", archive)
    old.write("a", 0)
    old.copies.save()
    before = (tmp_path / "archive" / "states" / f"{NAME}.tar.gz").read_bytes()
    (old.directory / "damaged.db").write_bytes(b"SQLite format 3\x00" + b"\xff" * 4096)
    with pytest.raises(UnavailableError, match="cannot be copied"):
        old.copies.save()
    assert (tmp_path / "archive" / "states" / f"{NAME}.tar.gz").read_bytes() == before


async def test_the_copy_is_saved_again_when_it_is_old(tmp_path: Path) -> None:
    archive = ArchiveDirectory(tmp_path / "archive")
    old = Machine(tmp_path / "old", archive)
    old.write("a", 0)
    clock = ManualClock(0)
    assert await StateSaver(old.copies, clock, 24 * HOUR_MS).save_if_old()
    saved_ms = old.copies.saved_ms()
    assert saved_ms is not None
    clock.move(saved_ms / 1000)
    saver = StateSaver(old.copies, clock, 24 * HOUR_MS)
    for hour in range(1, 26):
        clock.move(3600)
        assert await saver.save_if_old() == (hour >= 24), hour


async def test_a_saver_goes_on_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "archive").touch()
    old = Machine(tmp_path / "old", ArchiveDirectory(tmp_path / "archive"))
    old.write("a", 0)
    clock, ready, looked = ManualClock(0), asyncio.Event(), asyncio.Event()
    saver = StateSaver(old.copies, clock, 24 * HOUR_MS)
    save_if_old = saver.save_if_old

    async def noticed() -> bool:
        try:
            return await save_if_old()
        finally:
            looked.set()

    saver.save_if_old = noticed  # type: ignore[method-assign]
    running = asyncio.create_task(saver.run(ready))
    await ready.wait()
    await _looks(clock, looked)
    assert not running.done()
    (tmp_path / "archive").unlink()
    await _looks(clock, looked)
    assert old.copies.saved_ms() is not None
    running.cancel()


async def _looks(clock: ManualClock, looked: asyncio.Event) -> None:
    """Return once the saver has looked at the copy again."""
    looked.clear()
    while not looked.is_set():
        clock.move(3600)
        await asyncio.sleep(0)
