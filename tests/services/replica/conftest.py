"""Fixture: the log of the followers under test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.services.replica.tally_role import FaultyAppendsLog


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[FaultyAppendsLog]:
    log = FaultyAppendsLog(tmp_path / "log.sqlite")
    yield log
    await log.close()
