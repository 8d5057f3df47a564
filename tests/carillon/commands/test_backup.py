"""`carillon backup` and `carillon restore`: what they leave behind, also when they fail, and what they refuse."""

import asyncio
import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from carillon.main import main
from protos.registry.v1.apps_pb2 import App, AppFact
from protos.registry.v1.devices_pb2 import DeviceCommand
from services.domain.master_key import MasterKey, create_master
from services.domain.topics import APPS, DELIVERIES, DEVICE_COMMANDS, TOPICS, decode
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.store import encode
from services.log.port import NewRecord, Partition, Record
from services.log.sqlite.log import SqliteLog
from services.process.data_directory import lock_directory
from testkit.faults.full_disk import full_disk

PARTITIONS = 2
ARCHIVED = Partition(DELIVERIES.name, 1)
NEWEST_MS = 1_790_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory whose log has one app, and is written by this process."""
    data = tmp_path / "data"
    create_master(data / "master.key")
    app = App(appkey="1234567890", sealed_secret=MasterKey.load(data / "master.key").seal("s" * 64, "1234567890"))
    fact = AppFact(app=app)
    fact.meta.time_ms = NEWEST_MS

    async def write() -> None:
        log = SqliteLog(data / "log" / "events.db", TOPICS, partitions=PARTITIONS)
        await log.append(
            [
                NewRecord(APPS.name, 0, app.appkey.encode(), fact.SerializeToString()),
                NewRecord(DELIVERIES.name, 0, b"not to be decoded", b"\xff"),
            ]
        )
        await log.close()

    asyncio.run(write())
    return data


def carillon(data: Path, *arguments: str | Path, **env: str) -> Result:
    settings = {"CARILLON_DATA_DIR": str(data), "CARILLON_PARTITIONS": str(PARTITIONS), "CARILLON_TIMEZONE": "UTC"}
    return CliRunner(env={**settings, **env}).invoke(main, [str(argument) for argument in arguments])


def write_segment(data: Path, offset: int = 0) -> Path:
    """Write a segment of one record into the archive, and what a kill left of another one; return the first's file."""
    name, content = encode("", ARCHIVED, offset + 1, [Record(*ARCHIVED, offset, b"key", b"value")])
    archive = ArchiveDirectory(data / "log" / "archive")
    archive.write(ARCHIVED, name, content)
    folder = archive.path / ARCHIVED.topic / "0001"
    (folder / "unfinished").write_bytes(b"\x28")
    return folder / str(name)


def trim(data: Path, before: int) -> None:
    """Remove the records of the archived partition before an offset from the log."""

    async def append_and_trim() -> None:
        log = SqliteLog(data / "log" / "events.db", TOPICS, partitions=PARTITIONS)
        await log.append([NewRecord(*ARCHIVED, b"key", b"value")] * (before + 1))
        await log.trim(ARCHIVED, before)
        await log.close()

    asyncio.run(append_and_trim())


def commands(data: Path) -> dict[int, DeviceCommand]:
    """Return the only device command of each partition."""

    async def read() -> dict[int, DeviceCommand]:
        log = SqliteLog(data / "log" / "events.db", TOPICS, partitions=PARTITIONS, read_only=True)
        starts = {Partition(DEVICE_COMMANDS.name, number): 0 for number in range(PARTITIONS)}
        page = await log.select(starts, 100)
        await log.close()
        assert len(page.records) == PARTITIONS
        return {record.partition: decode(record) for record in page.records}

    return asyncio.run(read())


def test_a_backup_beside_the_writer_is_restored_with_numbers_reserved(data: Path, tmp_path: Path) -> None:
    with sqlite3.connect(data / "log" / "events.db") as writer:
        writer.execute("BEGIN IMMEDIATE")
        segment = write_segment(data)
    made = carillon(data, "backup", tmp_path / "backups" / "monday", "--json")
    assert made.exit_code == 0, made.output
    copy = tmp_path / "backups" / "monday" / "log" / "events.db"
    size = copy.stat().st_size + segment.stat().st_size
    assert json.loads(made.output) == {"directory": str(tmp_path / "backups" / "monday"), "bytes": size}
    assert sorted(path.name for path in copy.parent.iterdir()) == ["archive", "events.db"]
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["monday"]

    restored = tmp_path / "restored"
    restored.mkdir()
    (restored / "master.key").write_bytes((data / "master.key").read_bytes())
    (restored / "master.key").chmod(0o600)
    done = carillon(restored, "restore", tmp_path / "backups" / "monday", "--lost-devices", "200", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"newest_record": "2026-09-21T14:13:20+00:00", "apps": 1}
    assert (restored / segment.relative_to(data)).read_bytes() == segment.read_bytes()
    for command in commands(restored).values():
        assert (command.appkey, command.meta.origin.interface) == ("1234567890", "cli")
        assert 100 + 50 < command.reserve_numbers.count < 200
    again = carillon(restored, "restore", tmp_path / "backups" / "monday")
    assert (again.exit_code, "holds log: restore into one with keys alone" in again.output) == (1, True)


def test_numbers_are_reserved_in_a_directory_that_was_rolled_back(data: Path) -> None:
    with lock_directory(data):
        busy = carillon(data, "restore", "--lost-devices", "200")
    assert (busy.exit_code, "another carillon process uses" in busy.output) == (1, True)
    done = carillon(data, "restore", "--lost-devices", "200", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"newest_record": "2026-09-21T14:13:20+00:00", "apps": 1}
    for command in commands(data).values():
        assert 100 + 50 < command.reserve_numbers.count < 200


def test_a_backup_that_fails_leaves_nothing(data: Path, tmp_path: Path) -> None:
    with full_disk(8192):
        failed = carillon(data, "backup", tmp_path / "monday")
    assert failed.exit_code == 1
    assert failed.output.startswith("Error: the event log ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    with (data / "log" / "events.db").open("r+b") as file:
        file.seek(4096 + 8)
        file.write(b"\xff" * 512)
    damaged = carillon(data, "backup", tmp_path / "monday")
    assert damaged.exit_code == 1, damaged.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file/monday", "Not a directory"),
        ("/proc/monday", "No such file or directory"),
        ("m" * 300, "File name too long"),
    ],
)
def test_a_backup_to_a_place_that_cannot_be_written_is_one_line(
    place: str, reason: str, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    failed = carillon(data, "backup", tmp_path / place)
    assert (failed.exit_code, failed.output) == (1, f"Error: {tmp_path / place} cannot be written: {reason}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


def test_a_backup_of_a_damaged_archive_is_refused(data: Path, tmp_path: Path) -> None:
    segment = write_segment(data)
    segment.write_bytes(segment.read_bytes()[:-1])
    damaged = carillon(data, "backup", tmp_path / "monday")
    assert (damaged.exit_code, f"segment {segment} is damaged" in damaged.output) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(("archived", "missing_before"), [((), 3), ((0, 2), 2), ((0, 1), 3), ((1, 2), 1)])
def test_a_backup_without_all_segments_is_refused(
    archived: Sequence[int], missing_before: int, data: Path, tmp_path: Path
) -> None:
    for offset in archived:
        write_segment(data, offset)
    trim(data, 3)
    refused = carillon(data, "backup", tmp_path / "monday")
    lacks = f"lacks records of deliveries/1 before offset {missing_before}, which the log holds no more: is it mounted?"
    assert (refused.exit_code, lacks in refused.output) == (1, True), refused.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize("folder", ["deliveries/0001", "deliveries", "."])
def test_a_backup_has_the_segments_in_linked_folders(folder: str, data: Path, tmp_path: Path) -> None:
    segments = [write_segment(data, offset) for offset in range(3)]
    trim(data, 2)
    linked = data / "log" / "archive" / folder
    linked.rename(tmp_path / "disk")
    linked.symlink_to(tmp_path / "disk")
    done = carillon(data, "backup", tmp_path / "monday")
    assert done.exit_code == 0, done.output
    for segment in segments:
        assert (tmp_path / "monday" / segment.relative_to(data)).read_bytes() == segment.read_bytes()


def test_a_restore_without_all_segments_leaves_nothing(data: Path, tmp_path: Path) -> None:
    write_segment(data)
    trim(data, 1)
    assert carillon(data, "backup", tmp_path / "monday").exit_code == 0
    shutil.rmtree(tmp_path / "monday" / "log" / "archive")
    shutil.rmtree(data / "log")
    refused = carillon(data, "restore", tmp_path / "monday")
    assert (refused.exit_code, "lacks records of deliveries/1 before offset 1" in refused.output) == (1, True)
    assert sorted(path.name for path in data.iterdir()) == ["carillon.lock", "master.key"]


def test_the_next_backup_takes_over_the_folder_of_a_killed_one(data: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / ".monday.unfinished"
    (unfinished / "log").mkdir(parents=True)
    (unfinished / "log" / "events.db").write_bytes(b"SQLite")
    descriptor = os.open(unfinished, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    refused = carillon(data, "backup", tmp_path / "monday")
    assert (refused.exit_code, "another backup is being written to" in refused.output) == (1, True)
    os.close(descriptor)
    assert carillon(data, "backup", tmp_path / "monday").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "monday"]
    again = carillon(data, "backup", tmp_path / "monday")
    assert (again.exit_code, "monday exists: name a new directory" in again.output) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "monday"]


def test_a_restore_with_another_master_key_or_partitions_leaves_nothing(data: Path, tmp_path: Path) -> None:
    assert carillon(data, "backup", tmp_path / "monday").exit_code == 0
    other = tmp_path / "other"
    create_master(other / "master.key")
    wrong_key = carillon(other, "restore", tmp_path / "monday")
    assert (wrong_key.exit_code, "sealed with another master key" in wrong_key.output) == (1, True)
    (other / "master.key").write_bytes((data / "master.key").read_bytes())
    wrong_number = carillon(other, "restore", tmp_path / "monday", CARILLON_PARTITIONS="4")
    assert (wrong_number.exit_code, "set CARILLON_PARTITIONS=2" in wrong_number.output) == (1, True)
    assert sorted(path.name for path in other.iterdir()) == ["carillon.lock", "master.key"]
    without_key = carillon(tmp_path / "none", "restore", tmp_path / "monday")
    assert (without_key.exit_code, "master" in without_key.output) == (1, True)


def test_a_restore_that_was_killed_is_repeated_by_the_same_command(data: Path, tmp_path: Path) -> None:
    assert carillon(data, "backup", tmp_path / "monday").exit_code == 0
    unfinished = data / "restoring"
    unfinished.mkdir()
    (unfinished / "archive").mkdir()
    for name in ("events.db", "events.db-wal", "events.db.lock", "archive/segment"):
        (unfinished / name).write_bytes((data / "log" / "events.db").read_bytes()[:5000])
    (unfinished / "notes.txt").touch()
    shutil.rmtree(data / "log")
    refused = carillon(data, "restore", tmp_path / "monday")
    assert (refused.exit_code, "holds restoring: restore into one" in refused.output) == (1, True)
    (unfinished / "notes.txt").unlink()
    done = carillon(data, "restore", tmp_path / "monday", "--json")
    assert (done.exit_code, json.loads(done.output)["apps"]) == (0, 1)
    assert sorted(path.name for path in data.iterdir()) == ["carillon.lock", "log", "master.key"]
    assert len(commands(data)) == PARTITIONS


def test_what_cannot_be_meant_is_refused(data: Path, tmp_path: Path) -> None:
    kafka = {"CARILLON_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    for result, why in (
        (carillon(data, "backup", tmp_path), "exists: name a new directory"),
        (carillon(tmp_path / "none", "backup", tmp_path / "b"), "there is no event log at"),
        (carillon(data, "backup", tmp_path / "b", **kafka), "the event log is in Kafka"),
        (carillon(data, "restore", tmp_path / "b", **kafka), "name no DIRECTORY where CARILLON_KAFKA_BOOTSTRAP is set"),
        (carillon(tmp_path / "none", "restore"), "name the DIRECTORY of a backup"),
        (carillon(data, "restore", tmp_path / "b"), "holds no backup"),
    ):
        assert (result.exit_code, why in result.output) == (1, True), result.output
