"""One embedded engine for a module of tests, as one process can have one, and a fresh database for each test."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from analytics.clickhouse import ClickHouse
from analytics.migrate import migrate
from services.runtime.sqlite_log import SqliteLog

_names = (f"test_{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def engine_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine") / "chdb"


@pytest.fixture
async def engine(engine_path: Path) -> AsyncIterator[ClickHouse]:
    engine = ClickHouse(None, engine_path, "unused")
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def clickhouse(engine: ClickHouse) -> AsyncIterator[ClickHouse]:
    database = engine.beside(next(_names))
    await migrate(database)
    yield database
    await database.close()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log" / "events.db")
    yield log
    await log.close()
