"""The data directory: one running process, and files that are accessible to their owner alone."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from carillon.main import main
from carillon.roles import REPLAYABLE
from carillon.startup import restrict_state
from services.domain.topics import TASK_COMMANDS, TOPICS
from services.errors import CarillonError, ConflictError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.data_directory import lock_directory
from testkit.held_process import holding

HOLD = """
from pathlib import Path
from services.process.data_directory import lock_directory
hold = lock_directory(Path(sys.argv[1]))
got = hold.__enter__()
"""


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    """Let a process make files that everyone can read, as a shell does."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with holding(HOLD, str(tmp_path)) as other:
        with pytest.raises(ConflictError, match=rf"uses {tmp_path}; .*CARILLON_DATA_DIR"), lock_directory(tmp_path):
            pass
        other.kill()
        with lock_directory(tmp_path):
            pass


def test_two_locks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with lock_directory(tmp_path), pytest.raises(ConflictError), lock_directory(tmp_path):
        pass
    with lock_directory(tmp_path), lock_directory(tmp_path, "other.lock"):
        pass


def test_the_directory_is_made(tmp_path: Path) -> None:
    with lock_directory(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CarillonError, match=rf"^{tmp_path}/file/data cannot be written: .*CARILLON_DATA_DIR$"):
        lock_directory(tmp_path / "file" / "data").__enter__()


def accessible_to_others(*directories: Path) -> set[Path]:
    found = [path for directory in directories for path in (directory, *directory.rglob("*"))]
    assert len(found) > len(directories)
    return {path for path in found if path.stat().st_mode & 0o077}


@pytest.mark.parametrize("role", sorted({*REPLAYABLE} - {"analytics"}))
def test_what_replays_write_is_for_the_owner_alone(role: str, tmp_path: Path) -> None:
    asyncio.run(write_log(tmp_path / "data" / "log"))
    runner = CliRunner(env={"CARILLON_DATA_DIR": str(tmp_path / "data"), "CARILLON_PARTITIONS": "2"})
    past = tmp_path / "inspected" / role
    for options in ([], ["--until", "2026-11-21T14:05:00+00:00", "--into", str(past)]):
        done = runner.invoke(main, ["replay", role, *options])
        assert done.exit_code == 0, done.output
    assert not accessible_to_others(tmp_path / "data" / role, tmp_path / "inspected")


async def write_log(directory: Path) -> None:
    log = SqliteLog(directory / "events.db", TOPICS, partitions=2)
    await log.append([NewRecord(TASK_COMMANDS.name, 0, b"", b"")])
    await log.close()


def test_the_first_keys_are_for_the_owner_alone(tmp_path: Path) -> None:
    runner = CliRunner(env={"CARILLON_DATA_DIR": str(tmp_path / "new" / "data")})
    done = runner.invoke(main, ["keys", "export", "--create", "--secrets-key", str(tmp_path / "new" / "secrets.key")])
    assert done.exit_code == 0, done.output
    assert not accessible_to_others(tmp_path / "new")


def test_a_state_of_an_earlier_version_is_restricted(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "accounts", tmp_path / "elsewhere"
    (state / "older").mkdir(parents=True)
    for file in state / "accounts.sqlite", state / "older" / "accounts.sqlite", elsewhere:
        file.touch(0o666)
    (state / "link").symlink_to(elsewhere)
    (state / "broken").symlink_to(tmp_path / "none")
    restrict_state(state)
    restrict_state(tmp_path / "none")
    (state / "broken").unlink()
    assert accessible_to_others(state) == {state / "link"}
    assert (state / "accounts.sqlite").stat().st_mode & 0o777 == 0o600
