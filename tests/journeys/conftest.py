"""The same journeys through one process on embedded defaults, and through one process a role on a real Kafka broker."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.journeys.installation import AppServer, Installation, TestApp
from tests.support.kafka import kafka


@pytest.fixture(scope="session", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def carillon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A running service, shared by the journeys; each makes apps of its own."""
    with contextlib.ExitStack() as stack:
        bootstrap = None
        if request.param == "kafka":
            bootstrap = stack.enter_context(kafka(tmp_path_factory.mktemp("broker"))).bootstrap
        installation = stack.enter_context(
            contextlib.closing(Installation(tmp_path_factory.mktemp(request.param), bootstrap))
        )
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
