"""Fixtures that more than one folder of tests uses."""

from collections.abc import Iterator

import hypothesis
import pytest
import structlog

from services.runtime.process.logs import logger
from testkit.kafka import KafkaBroker, kafka
from testkit.service import Service

# The same examples in every run, and no verdict that depends on how busy the machine is.
hypothesis.settings.register_profile(
    "carillon",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("carillon")


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """What a command that runs in this process makes of the logs lasts as long as its test."""
    yield
    structlog.reset_defaults()
    vars(logger).pop("bind", None)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real broker, one for the whole run."""
    with kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def empty_broker(kafka_broker: KafkaBroker) -> KafkaBroker:
    """The real broker without topics."""
    if not kafka_broker.running:
        kafka_broker.start()
    kafka_broker.delete_topics()
    return kafka_broker


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`carillon up`, one for the whole run: for tests that only send requests and read answers."""
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running
