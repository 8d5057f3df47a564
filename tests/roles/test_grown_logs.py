"""A log that lost its tail and has grown again past a state's offsets is refused by every role with a state.

Analytics, whose state is in another process and store, is among the roles of `tests/journeys/test_replay.py`.
"""

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from carillon.roles import REPLAYABLE, ROLES, role_definition
from services.domain.topics import TOPICS
from services.errors import ConflictError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog

IN_PROCESS = [role for role in REPLAYABLE if role != "analytics"]


async def append(path: Path, text: str, count: int = 1) -> None:
    """Append records that no role can decode to each topic; they become dead letters, and count as applied."""
    log = SqliteLog(path, TOPICS, partitions=1)
    for number in range(count):
        await log.append([NewRecord(topic, 0, b"key", f"{text} {number}".encode()) for topic in TOPICS])
    await log.close()


@asynccontextmanager
async def state_of(role: str, directory: Path, path: Path) -> AsyncIterator[Any]:
    """Apply the log to the role's state, as a start does, and yield the state; then save it."""
    module = __import__(ROLES[role], fromlist=["open_state"])
    settings = role_definition(role).settings(data_dir=str(directory), partitions=1)
    log = SqliteLog(path, TOPICS, partitions=1)
    try:
        state = module.open_state(settings, directory / "state", log)
        try:
            for follower in state.followers:
                await follower.apply_until(await log.ends(follower.sources), lambda count: None)
            yield state
            state.save()
        finally:
            state.close()
    finally:
        await log.close()


@pytest.mark.parametrize("role", IN_PROCESS)
async def test_a_log_that_went_back_and_grew_past_the_state_is_refused(role: str, tmp_path: Path) -> None:
    log, grown = tmp_path / "log.sqlite", tmp_path / "grown.sqlite"
    await append(log, "kept", 2)
    shutil.copy(log, grown)
    await append(log, "lost")
    async with state_of(role, tmp_path, log):
        pass
    await append(log, "later", 2)
    async with state_of(role, tmp_path, log):
        pass
    await append(grown, "another", 9)
    with pytest.raises(
        ConflictError, match=r"state of .*another record at offset 4 of .* gone back and grown since.*--lost-devices"
    ):
        async with state_of(role, tmp_path, grown):
            pass
    _forget_marks(tmp_path / "state")  # as a state of an earlier release
    async with state_of(role, tmp_path, grown):
        pass


def _forget_marks(directory: Path) -> None:
    found = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            if name.endswith((".sqlite", ".db", ".snapshot")):
                with closing(sqlite3.connect(Path(folder) / name)) as file:
                    found += file.execute("SELECT count(*) FROM record_marks").fetchone()[0]
                    file.execute("DROP TABLE record_marks")
    assert found
