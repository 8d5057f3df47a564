"""Fixture: the log of the followers under test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.projection.tally_role import BrittleLog


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[BrittleLog]:
    log = BrittleLog(tmp_path / "log.sqlite")
    yield log
    await log.close()
