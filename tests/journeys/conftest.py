"""The same journeys through one process (`embedded`), and through two processes a role on a real Kafka (`shards`)."""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from testkit.clickhouse.server import ClickHouseServer
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.definitions import STANDBYS
from testkit.installation.otlp_receiver import OtlpReceiver, otlp_receiver
from testkit.installation.processes import Installation
from testkit.kafka.broker import AUTHORIZED, kafka

KINDS = ["embedded", pytest.param("shards", marks=[pytest.mark.kafka, pytest.mark.long])]
"""`carillon up` in one process, and two processes a role, which `make test-long` starts alone: on a real Kafka with an
authorizer, each as its role's user.
"""

SHARDS_BEFORE_RELEASES = pytest.mark.parametrize(
    "carillon",
    ["embedded", pytest.param("shards", marks=[pytest.mark.kafka, pytest.mark.long, pytest.mark.seeds])],
    indirect=True,
)
"""For journeys on which several processes a role do what they do on others: `shards` runs before a release alone."""

WELCOME = re.compile(
    r"(Carillon is ready\.|A simulator answers in .*|No administrator can log in .*|\d\. .*| {2,3}\S.*)?"
)


@pytest.fixture(scope="package")
def collector() -> Iterator[OtlpReceiver]:
    """The collector to which the installation exports the traces of all requests."""
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="package", params=KINDS)
def carillon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, collector: OtlpReceiver
) -> Iterator[Installation]:
    """A running installation, shared by the journeys; each creates apps of its own.

    It ends with them: even with nothing to do, two processes a role take most of a core.
    """
    with contextlib.ExitStack() as stack:
        data = tmp_path_factory.mktemp(request.param)
        if request.param == "embedded":
            installation = stack.enter_context(contextlib.closing(Installation(data, None)))
        else:
            broker = stack.enter_context(kafka(tmp_path_factory.mktemp("broker"), AUTHORIZED))
            address = broker.at("SASL_PLAINTEXT")
            installation = stack.enter_context(
                contextlib.closing(Installation(data, address, shards=2, standbys=True, kafka_users=broker))
            )
            clickhouse = ClickHouseServer(data / "clickhouse")
            clickhouse.start()
            stack.callback(clickhouse.kill)
            installation.env["CARILLON_CLICKHOUSE_URL"] = clickhouse.url
            installation.env["CARILLON_KAFKA_ARCHIVE_DIR"] = str(tmp_path_factory.mktemp("archive"))
        installation.env["CARILLON_STAGES_DIR"] = str(data / "stages")
        installation.env |= {"CARILLON_WEBPUSH": "internet", "CARILLON_CHANNEL_GRACE_S": "5"}
        installation.env |= {"CARILLON_TRACES_URL": collector.url, "CARILLON_TRACES_RATIO": "1"}
        installation.env["OTEL_BSP_SCHEDULE_DELAY"] = "100"
        names = [name for name in installation.names if name not in STANDBYS]
        installation.start(*names)
        yield installation
        installation.stop()
        for name in names:
            check_log(installation.output(name).read_text())


def check_log(text: str) -> None:
    """Check that each line is a JSON object, except those that `carillon up` prints when it is ready."""
    for line in text.splitlines():
        assert WELCOME.fullmatch(line) or json.loads(line)["event"], line


@pytest.fixture
def app(carillon: Installation) -> AppCredentials:
    return carillon.create_app()


@pytest.fixture
async def server(carillon: Installation) -> AsyncIterator[AppServer]:
    server = AppServer(carillon.v2_url)
    yield server
    await server.close()
