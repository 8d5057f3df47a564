"""The same journeys through one process, one process a role, and two processes a role: the last two on a real Kafka."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from testkit.clickhouse import ClickHouseServer
from testkit.kafka import kafka
from tests.journeys.installation import AppServer, Installation, TestApp

FEW_PROCESSES = ["embedded", pytest.param("kafka", marks=pytest.mark.kafka)]
KINDS = [*FEW_PROCESSES, pytest.param("shards", marks=pytest.mark.kafka)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each module's tests of one kind of installation after the other, so that each is started once."""
    modules = {path: place for place, path in reversed(list(enumerate(item.path for item in items)))}
    items.sort(key=lambda item: (modules[item.path], _kind(item)))


def _kind(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("carillon", "")) if callspec else ""


@pytest.fixture(scope="session", params=KINDS)
def carillon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A running service, shared by the journeys; each makes apps of its own."""
    with contextlib.ExitStack() as stack:
        bootstrap, shards = None, 1
        if request.param != "embedded":
            bootstrap = stack.enter_context(kafka(tmp_path_factory.mktemp("broker"))).bootstrap
        if request.param == "shards":
            shards = 2
        data = tmp_path_factory.mktemp(request.param)
        installation = stack.enter_context(contextlib.closing(Installation(data, bootstrap, shards=shards)))
        if shards > 1:
            clickhouse = ClickHouseServer(data / "clickhouse")
            clickhouse.start()
            stack.callback(clickhouse.kill)
            installation.env["CARILLON_CLICKHOUSE_URL"] = clickhouse.url
        installation.start()
        yield installation
        installation.stop()


@pytest.fixture
def app(carillon: Installation) -> TestApp:
    return carillon.create_app()


@pytest.fixture
async def server(carillon: Installation) -> AsyncIterator[AppServer]:
    server = AppServer(carillon.v2_url)
    yield server
    await server.close()
