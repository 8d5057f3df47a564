"""The same journeys through one process on embedded defaults, and through one process a role on a real Kafka broker."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.journeys.installation import AppServer, Installation, TestApp


@pytest.fixture(scope="session", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def carillon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A running service, shared by the journeys; each makes apps of its own."""
    bootstrap = None
    if request.param == "kafka":
        broker = request.getfixturevalue("kafka_broker")
        broker.delete_topics()
        bootstrap = broker.bootstrap
    installation = Installation(tmp_path_factory.mktemp(request.param), bootstrap)
    try:
        installation.start()
        yield installation
        installation.stop()
    finally:
        installation.close()


@pytest.fixture
def app(carillon: Installation) -> TestApp:
    return carillon.create_app()


@pytest.fixture
async def server(carillon: Installation) -> AsyncIterator[AppServer]:
    server = AppServer(carillon.v2_url)
    yield server
    await server.close()
