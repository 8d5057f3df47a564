"""The log on brokers that demand TLS and authentication, connected as the settings say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.domain.settings import Settings, load
from services.domain.topics import TOPICS
from services.errors import ConflictError
from services.log.kafka.log import KafkaLog
from testkit.certificates import Authority
from testkit.kafka.broker import KafkaBroker, Security, kafka
from tests.contract.log.conftest import PARTITIONS
from tests.contract.log.reading import P0, new_record, read_to_end, values

pytestmark = pytest.mark.kafka
PASSWORD = "open=sesame 7"
CANARY = "canary-9c1f"
Env = dict[str, str]
_SETTINGS = """
ssl.keystore.type=PEM
ssl.keystore.location={keys}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_carillon="{password}";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    directory = tmp_path_factory.mktemp("secured")
    own = authority.issue("broker")
    keys = directory / "keys.pem"
    keys.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    settings = _SETTINGS.format(keys=keys, authority=authority.file, password=PASSWORD)
    users = tuple(f'SCRAM-SHA-{bits}=[name="carillon",password="{PASSWORD}"]' for bits in (256, 512))
    with kafka(directory / "kafka", Security(("SSL", "SASL_SSL"), settings, users)) as broker:
        yield broker


@pytest.fixture
def by_certificate(broker: KafkaBroker, authority: Authority) -> Env:
    mine = authority.issue("carillon")
    return {
        "KAFKA_BOOTSTRAP": broker.at("SSL"),
        "KAFKA_SECURITY_PROTOCOL": "SSL",
        "KAFKA_TLS_AUTHORITY": str(authority.file),
        "KAFKA_TLS_CERT": str(mine.certificate),
        "KAFKA_TLS_KEY": str(mine.key),
    }


@pytest.fixture
def by_password(broker: KafkaBroker, authority: Authority, tmp_path: Path) -> Env:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return {
        "KAFKA_BOOTSTRAP": broker.at("SASL_SSL"),
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_TLS_AUTHORITY": str(authority.file),
        "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_SASL_USER": "carillon",
        "KAFKA_SASL_PASSWORD_FILE": str(file),
    }


async def opened(env: Env) -> KafkaLog:
    settings = load(Settings, {f"CARILLON_{name}": value for name, value in env.items()})
    assert settings.kafka_bootstrap is not None
    return await KafkaLog.connect(settings.kafka_bootstrap, TOPICS, PARTITIONS, security=settings.kafka_security())


async def check_log(env: Env, value: str) -> None:
    """Use every kind of Kafka client of a log once."""
    log = await opened(env)
    [offset] = await log.append([new_record(value)])
    last = await log.last(P0)
    assert last is not None
    assert (last.offset, last.value) == (offset, value.encode())
    assert values(await read_to_end(log, {P0: offset})) == [value]
    await log.close()


async def test_authentication_by_a_certificate(by_certificate: Env) -> None:
    await check_log(by_certificate, "certificate")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_authentication_by_a_password(by_password: Env, mechanism: str) -> None:
    await check_log({**by_password, "KAFKA_SASL_MECHANISM": mechanism}, mechanism)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_ends_the_start_and_is_not_logged(
    by_password: Env, mechanism: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "password").write_text(CANARY)
    with pytest.raises(ConflictError, match="Kafka refuses") as refused:
        await opened({**by_password, "KAFKA_SASL_MECHANISM": mechanism})
    assert CANARY not in f"{refused.value} {refused.value.__cause__} {caplog.text}"


async def test_a_broker_of_another_authority_is_not_trusted(by_password: Env, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    with pytest.raises(ConflictError, match=r"Kafka at 127\.0\.0\.1:\d+ is not trusted"):
        await opened({**by_password, "KAFKA_TLS_AUTHORITY": str(other.file)})
    del by_password["KAFKA_TLS_AUTHORITY"]
    with pytest.raises(ConflictError, match="is not trusted"):
        await opened(by_password)


async def test_a_client_without_the_certificate_that_the_broker_demands(by_certificate: Env) -> None:
    del by_certificate["KAFKA_TLS_CERT"], by_certificate["KAFKA_TLS_KEY"]
    with pytest.raises(ConflictError, match="ends the connection"):
        await opened(by_certificate)
