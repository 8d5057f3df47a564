"""The analytics store for a module of tests, and an empty database in it for each test.

The store is the engine in this process, of which a process can have one. The modules in OVER_HTTP run a second time, on
a server: the one that CARILLON_TEST_CLICKHOUSE names, or the engine behind ClickHouse's HTTP interface. Parametrized
tests run on chdb only.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from analytics.store.clickhouse import ClickHouse
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from testkit.clickhouse.databases import EmptyDatabases
from testkit.clickhouse.server import ClickHouseServer

OVER_HTTP = {
    "test_acks",
    "test_audit",
    "test_audit_device",
    "test_audit_export",
    "test_broadcasts",
    "test_connection_changes",
    "test_crashes",
    "test_ingestion",
    "test_query_limits",
    "test_statistics",
}

SHORT_OVER_HTTP = {"test_query_limits"}
"""Modules that run over HTTP in `make test` too, as `test_outage` does; the others only in `make test-long`."""

_worker = os.environ.get("PYTEST_XDIST_WORKER", "")
_numbers = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_one = metafunc.definition.get_closest_marker("parametrize") is None
    if is_one and "interface" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in OVER_HTTP:
        is_short = metafunc.module.__name__.rpartition(".")[2] in SHORT_OVER_HTTP
        http = pytest.param("http", marks=[] if is_short else pytest.mark.long)
        metafunc.parametrize("interface", ["chdb", http], indirect=True, scope="module")


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that runs for the whole session and is never stopped by a test."""
    if url := os.environ.get("CARILLON_TEST_CLICKHOUSE"):
        yield url
        return
    server = ClickHouseServer(tmp_path_factory.mktemp("server") / "data")
    server.start()
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def interface(request: pytest.FixtureRequest) -> str:
    """`chdb` for the engine in this process, or `http` for a server."""
    return getattr(request, "param", "chdb")


@pytest.fixture(scope="session")
def engine_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of chdb for the whole session, so that its migrated databases serve module after module."""
    return tmp_path_factory.mktemp("engine") / "chdb"


@pytest.fixture(scope="session")
def free_databases() -> dict[str, list[tuple[str, list[str]]]]:
    """The empty databases that finished modules have left, by the interface."""
    return {"chdb": [], "http": []}


@pytest.fixture(scope="module")
def engine(engine_path: Path, interface: str, request: pytest.FixtureRequest) -> Iterator[ClickHouse]:
    """The store, opened for a module, as a process has one path of chdb; its tests work in databases beside it."""
    url = request.getfixturevalue("server_url") if interface == "http" else None
    engine = ClickHouse(url, engine_path, "unused", low_priority=False)
    asyncio.run(engine.open())
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def databases(
    engine: ClickHouse, interface: str, free_databases: dict[str, list[tuple[str, list[str]]]]
) -> EmptyDatabases:
    names = (f"carillon_test_{_worker}{number}" for number in _numbers)
    return EmptyDatabases(engine, names, free_databases[interface])


@pytest.fixture
async def clickhouse(engine: ClickHouse, databases: EmptyDatabases) -> AsyncIterator[ClickHouse]:
    """An empty database with the current schema."""
    name = await databases.take()
    database = engine.beside(name)
    yield database
    await database.close()
    await databases.give_back(name)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    yield log
    await log.close()
