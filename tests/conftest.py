"""Fixtures that more than one folder of tests uses."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

from tests.support.kafka import KafkaBroker, KafkaMissingError
from tests.support.service import Service

# The same examples in every run, and no verdict that depends on how busy the machine is.
hypothesis.settings.register_profile(
    "carillon",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("carillon")


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real broker, one for the whole run; a test that needs it empty calls `delete_topics()` first.

    Without Java and Maven it fails, unless CARILLON_TEST_WITHOUT_KAFKA=1 allows to skip what needs Kafka.
    """
    if os.environ.get("CARILLON_TEST_WITHOUT_KAFKA") == "1":
        pytest.skip("CARILLON_TEST_WITHOUT_KAFKA=1: not run on a real Kafka broker")
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
    except KafkaMissingError as error:
        pytest.fail(f"{error}; set CARILLON_TEST_WITHOUT_KAFKA=1 to leave these tests out", pytrace=False)
    yield broker
    if broker.running:
        broker.stop()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`carillon up`, one for the whole run: for tests that only send requests and read answers."""
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running
