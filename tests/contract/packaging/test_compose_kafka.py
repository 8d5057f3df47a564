"""The Kafka of docker-compose.yml: its settings on a real broker, and the users that its step `kafka-users` makes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from carillon.commands.acls import PASSWORD_FILE
from carillon.main import main
from services.domain.settings import Settings, load
from services.domain.topics import ACCOUNTS, SESSIONS, TOPICS
from services.errors import ConflictError, PermissionDeniedError
from services.log.kafka.log import KafkaLog
from services.log.port import NewRecord
from testkit.kafka.broker import KafkaBroker, Security, kafka
from tests.contract.packaging.container_files import OURS, SERVICES, environment, mounts

pytestmark = [pytest.mark.kafka, pytest.mark.long]
OF_PLACES = ("CLUSTER", "KAFKA_HEAP", "KAFKA_NODE", "KAFKA_PROCESS", "KAFKA_CONTROLLER", "KAFKA_LOG_DIRS")
LISTENERS = ("KAFKA_LISTENERS", "KAFKA_ADVERTISED", "KAFKA_LISTENER_SECURITY", "KAFKA_INTER_BROKER")


def properties() -> str:
    """Return the settings of the broker, as the image makes them of its environment, but for those of places."""
    given = SERVICES["kafka"]["environment"]
    kept = {name: value for name, value in given.items() if not name.startswith((*OF_PLACES, *LISTENERS))}
    lines = [f"{property_of(name)}={value}" for name, value in kept.items()]
    return "\n".join(
        ["", *lines, "listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"]
    )


def property_of(variable: str) -> str:
    words = variable.removeprefix("KAFKA_").lower()
    return words.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with kafka(tmp_path_factory.mktemp("compose") / "kafka", Security(("CLIENTS",), properties())) as broker:
        yield broker


@pytest.fixture(scope="module")
def identities(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the step twice, as two starts do; return the folder with what it has made."""
    folder = tmp_path_factory.mktemp("identities")
    arguments = [str(folder) if word.startswith("/") else word for word in SERVICES["kafka-users"]["command"]]
    env = {**environment("kafka-users"), "CARILLON_KAFKA_BOOTSTRAP": broker.bootstrap}
    for _ in range(2):
        done = CliRunner().invoke(main, arguments, env=env)
        assert done.exit_code == 0, done.output
    return folder


def test_the_step_makes_a_password_for_each_volume_that_it_has(identities: Path) -> None:
    made = {f"/identities/{file.parent.name}" for file in identities.rglob(PASSWORD_FILE)}
    assert made == set(mounts("kafka-users"))


async def test_the_roles_log_in_with_their_settings_and_passwords(broker: KafkaBroker, identities: Path) -> None:
    async def connect(name: str, password_of: str) -> KafkaLog:
        given = {key: value for key, value in environment(name).items() if key.startswith("CARILLON_KAFKA_")}
        given["CARILLON_KAFKA_BOOTSTRAP"] = broker.at("CLIENTS")
        given["CARILLON_KAFKA_SASL_PASSWORD_FILE"] = str(identities / password_of / PASSWORD_FILE)
        security = load(Settings, given).kafka_security()
        return await KafkaLog.connect(broker.at("CLIENTS"), TOPICS, security=security)

    for name in OURS:
        await (await connect(name, name)).close()
    log = await connect("gateway", "gateway")
    await log.append([NewRecord(SESSIONS.name, 0, b"k", b"v")])
    with pytest.raises(PermissionDeniedError, match="the user carillon-gateway append to the topic accounts"):
        await log.append([NewRecord(ACCOUNTS.name, 0, b"k", b"v")])
    await log.close()
    with pytest.raises(ConflictError, match="Kafka refuses"):
        await connect("accounts", "gateway")
