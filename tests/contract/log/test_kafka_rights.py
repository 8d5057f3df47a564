"""The users that `carillon acls` makes, on a real broker with its authorizer: each may do what its role does alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    for_code,
)
from click.testing import CliRunner

from carillon.commands.acls import PASSWORD_FILE
from carillon.main import main
from services.domain.settings import Settings, load
from services.domain.topics import (
    ACCOUNTS,
    APPS,
    ARCHIVE,
    DEVICES,
    OPERATOR,
    PUSHES,
    ROLE_USERS,
    SESSIONS,
    TOPICS,
    UP,
    Right,
    rights,
)
from services.errors import ConflictError, PermissionDeniedError
from services.log.kafka.client import client_settings
from services.log.kafka.log import KafkaLog
from services.log.kafka.users import Acl, KafkaUsers
from services.log.port import NewRecord, Partition
from testkit.kafka.broker import AUTHORIZED, KafkaBroker, kafka
from testkit.kafka.tools import run_with_kafka_tools

pytestmark = pytest.mark.kafka
PARTITIONS = 2
EVERY_USER = (*ROLE_USERS, UP)
Action = Callable[[str], Awaitable[object]]


def acls(bootstrap: str, *arguments: str) -> str:
    """Run `carillon acls` as the administrator of the cluster, who uses the plaintext listener."""
    env = {"CARILLON_KAFKA_BOOTSTRAP": bootstrap, "CARILLON_PARTITIONS": str(PARTITIONS)}
    done = CliRunner().invoke(main, ["acls", *arguments], env=env)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("passwords")


@pytest.fixture(scope="module")
def broker(passwords: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker with the topics, one record in each, and the users of the roles and of `carillon up`."""
    with kafka(tmp_path_factory.mktemp("authorized") / "kafka", AUTHORIZED) as broker:
        for arguments in ((), ("--up",)):
            acls(broker.bootstrap, *arguments, "--apply", "--passwords", str(passwords))
        asyncio.run(append_to_each_topic(broker.bootstrap))
        yield broker


async def append_to_each_topic(bootstrap: str) -> None:
    log = await KafkaLog.connect(bootstrap, TOPICS, PARTITIONS)
    await log.append([NewRecord(topic, 0, b"k", b"v") for topic in TOPICS])
    await log.close()


def settings_of(user: str, broker: KafkaBroker, passwords: Path) -> Settings:
    """Return the settings of a process with this user's name and password."""
    env = {
        "BOOTSTRAP": broker.at("SASL_PLAINTEXT"),
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SASL_MECHANISM": "SCRAM-SHA-512",
        "SASL_USER": f"carillon-{user}",
        "SASL_PASSWORD_FILE": str(passwords / user / PASSWORD_FILE),
    }
    return load(Settings, {f"CARILLON_KAFKA_{name}": value for name, value in env.items()})


@pytest.fixture
def connect(broker: KafkaBroker, passwords: Path) -> Callable[..., Awaitable[KafkaLog]]:
    """Return a function that opens the log as a user, as its processes do."""

    async def opened(user: str, *, read_only: bool = False) -> KafkaLog:
        settings = settings_of(user, broker, passwords)
        security = settings.kafka_security()
        bootstrap = broker.at("SASL_PLAINTEXT")
        return await KafkaLog.connect(bootstrap, TOPICS, PARTITIONS, security=security, read_only=read_only)

    return opened


@pytest.mark.parametrize("user", EVERY_USER)
async def test_a_user_may_do_what_the_table_says_and_nothing_else(
    user: str, broker: KafkaBroker, passwords: Path
) -> None:
    settings = settings_of(user, broker, passwords)
    client = client_settings(broker.at("SASL_PLAINTEXT"), settings.kafka_security(), 60)
    table = rights(user)
    admin, consumer = AIOKafkaAdminClient(**client), AIOKafkaConsumer(**client, fetch_max_wait_ms=50)
    writes = any(Right.WRITE in of_topic for of_topic in table.values())
    producer = AIOKafkaProducer(**client, enable_idempotence=writes)
    await admin.start()
    await consumer.start()
    await producer.start()
    consumer.assign([TopicPartition(topic, 0) for topic in TOPICS])
    for topic in TOPICS:
        consumer.seek(TopicPartition(topic, 0), 0)

    async def append(topic: str) -> object:
        return await producer.send_and_wait(topic, b"v", b"k", partition=0)

    async def read(topic: str) -> object:
        return await consumer.getone(TopicPartition(topic, 0))

    async def delete_records(topic: str) -> object:
        return await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=0)})

    async def alter(topic: str) -> object:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1000"})
        return checked([response.resources[0][0] for response in await admin.alter_configs({resource: None})])

    async def delete(topic: str) -> object:
        return checked([code for _, code in (await admin.delete_topics([topic])).topic_error_codes])

    async def ends(topic: str) -> object:
        return await consumer.end_offsets([TopicPartition(topic, 0)])

    try:
        expected = {right: {name for name, of_topic in table.items() if right in of_topic} for right in Right}
        assert (
            await allowed(lambda topic: producer.send_and_wait(topic, b"v", b"k", partition=0)) == expected[Right.WRITE]
        )
        assert await allowed(read) == expected[Right.READ]
        assert await allowed(delete_records) == expected[Right.DELETE]
        assert await allowed(ends) == expected[Right.DESCRIBE] == set(TOPICS)
        assert not await allowed(alter)
        # Who may delete records may delete the topic, too: Kafka knows one right for both.
        assert not await allowed(delete, set(TOPICS) - expected[Right.DELETE])
        made = await admin.create_topics([NewTopic("other", 1, 1)])
        assert [for_code(code) for _, code, _ in made.topic_errors] == [TopicAuthorizationFailedError]
    finally:
        await asyncio.gather(admin.close(), consumer.stop(), producer.stop())


async def allowed(action: Action, topics: Iterable[str] = TOPICS) -> set[str]:
    """Do something with each topic; return those with which it succeeded. The others must be refused to this user."""
    names = list(topics)
    outcomes = await asyncio.gather(*(action(topic) for topic in names), return_exceptions=True)
    for topic, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, TopicAuthorizationFailedError):
            raise AssertionError(f"{topic}: {outcome!r}")
    return {topic for topic, outcome in zip(names, outcomes, strict=True) if not isinstance(outcome, BaseException)}


def checked(codes: list[int]) -> list[int]:
    """Return the codes of an answer, if none of them is an error."""
    for code in codes:
        if code:
            raise for_code(code)
    return codes


async def test_no_role_uses_groups_or_transactions(broker: KafkaBroker, passwords: Path) -> None:
    client = client_settings(broker.at("SASL_PLAINTEXT"), settings_of("edge", broker, passwords).kafka_security(), 60)
    consumer = AIOKafkaConsumer("apps", **client, group_id="g")
    with pytest.raises(GroupAuthorizationFailedError):
        await consumer.start()
    await consumer.stop()
    producer = AIOKafkaProducer(**client, transactional_id="t")
    with pytest.raises(TransactionalIdAuthorizationFailed):
        await producer.start()
    await producer.stop()


@pytest.fixture
async def log_of_gateway(connect: Callable[..., Awaitable[KafkaLog]]) -> AsyncIterator[KafkaLog]:
    log = await connect("gateway")
    yield log
    await log.close()


async def test_a_gateways_log_refuses_at_once_what_others_write(log_of_gateway: KafkaLog) -> None:
    """With the settings and the password of a gateway nobody forges an administrator, an app, a device or a push."""
    await log_of_gateway.append([NewRecord(SESSIONS.name, 0, b"k", b"v")])
    for topic in (ACCOUNTS, APPS, DEVICES, PUSHES):
        before = await log_of_gateway.ends([Partition(topic.name, 0)])
        refused = rf"^Kafka does not let the user carillon-gateway append to the topic {topic.name}\. `carillon acls`"
        with pytest.raises(PermissionDeniedError, match=refused):
            async with asyncio.timeout(10):
                await log_of_gateway.append([NewRecord(topic.name, 0, b"k", b"v")])
        assert await log_of_gateway.ends([Partition(topic.name, 0)]) == before
    await log_of_gateway.append([NewRecord(SESSIONS.name, 0, b"k", b"v")])


async def test_a_gateways_log_refuses_at_once_what_is_not_for_it(log_of_gateway: KafkaLog) -> None:
    reader = await log_of_gateway.open({Partition(ACCOUNTS.name, 0): 0})
    refused = "^Kafka does not let the user carillon-gateway read the topic accounts"
    with pytest.raises(PermissionDeniedError, match=refused):
        async with asyncio.timeout(10):
            await reader.read()
    await reader.close()


async def test_a_batch_whose_offset_is_unknown_is_appended_again_where_it_may_not_be_read(
    log_of_gateway: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker forgets the offset of a repeated batch. Who may not read the topic cannot look for it there."""
    send, answers = log_of_gateway._producer.send, [True]

    async def forgetful(*arguments: Any, **options: Any) -> tuple[int, int]:
        base, count = await send(*arguments, **options)
        return (-1 if answers and answers.pop() else base), count

    monkeypatch.setattr(log_of_gateway._producer, "send", forgetful)
    (end,) = (await log_of_gateway.ends([Partition(SESSIONS.name, 1)])).values()
    assert await log_of_gateway.append([NewRecord(SESSIONS.name, 1, b"k", b"again")]) == [end + 1]


@pytest.mark.parametrize("user", [OPERATOR, ARCHIVE])
async def test_users_that_append_nothing_need_no_right_to_write(
    user: str, connect: Callable[..., Awaitable[KafkaLog]]
) -> None:
    log = await connect(user, read_only=True)
    reader = await log.open({Partition(SESSIONS.name, 0): 0})
    assert await reader.read()
    await log.check_writable()
    await log.close()


def test_rights_that_the_table_does_not_name_are_removed(broker: KafkaBroker, passwords: Path) -> None:
    client = client_settings(broker.bootstrap, load(Settings, {}).kafka_security(), 60)
    principal = "User:carillon-gateway"
    kept = [Acl(principal, right.value, topic) for topic, of_topic in rights("gateway").items() for right in of_topic]
    added = asyncio.run(KafkaUsers(client).set_acls([*kept, Acl(principal, "Write", ACCOUNTS.name)]))
    assert (added.added, added.removed) == (1, 0)
    answer = json.loads(acls(broker.bootstrap, "--apply", "--json"))
    assert answer == {"topics": len(TOPICS), "users": [], "added": 0, "removed": 1}


@pytest.mark.long
def test_the_printed_commands_do_the_same(broker: KafkaBroker, tmp_path: Path) -> None:
    """Kafka's own tools run all of them; after that `--apply` has nothing to add or to remove."""
    own = ("--prefix", "printed-", "--passwords", str(tmp_path / "passwords"))
    printed = acls(broker.bootstrap, *own)
    assert not any(password.read_text().strip() in printed for password in tmp_path.rglob(PASSWORD_FILE))
    run_with_kafka_tools("set -e\n" + printed, tmp_path / "tools")
    answer = json.loads(acls(broker.bootstrap, "--prefix", "printed-", "--apply", "--json"))
    assert (answer["added"], answer["removed"]) == (0, 0)


async def test_a_user_without_rights_is_told_so_at_the_start(broker: KafkaBroker, tmp_path: Path) -> None:
    client = client_settings(broker.bootstrap, load(Settings, {}).kafka_security(), 60)
    file = tmp_path / "nobody" / PASSWORD_FILE
    file.parent.mkdir()
    file.write_text("secret\n")
    await KafkaUsers(client).set_passwords({"carillon-nobody": file})
    security = settings_of("nobody", broker, tmp_path).kafka_security()
    with pytest.raises(ConflictError, match=r"does not exist, or this user may not see it\. `carillon acls --apply`"):
        await KafkaLog.connect(broker.at("SASL_PLAINTEXT"), TOPICS, PARTITIONS, security=security)
