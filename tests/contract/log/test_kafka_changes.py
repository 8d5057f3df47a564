"""Changes of a cluster: topics that brokers cannot create or do not know yet, and a broker that moves."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import InvalidReplicationFactorError, UnknownTopicOrPartitionError

from services.domain.topics import APPS, TOPICS
from services.errors import ConflictError
from services.log.kafka.client import client_settings
from services.log.kafka.log import KafkaLog
from services.log.kafka.security import PLAINTEXT
from services.log.kafka.topics import check_topics, prepare_topics, topic_configs
from services.log.port import append_until_accepted, ends_of
from testkit.faults.stalling_proxy import stalling_proxy
from testkit.kafka.broker import KafkaBroker, kafka
from tests.contract.log.conftest import Connect
from tests.contract.log.reading import P0, new_record

pytestmark = pytest.mark.kafka


async def test_a_broker_that_does_not_know_a_topic_is_asked_again(connect: Connect, empty_broker: KafkaBroker) -> None:
    await connect()
    settings = client_settings(empty_broker.bootstrap, PLAINTEXT, 30)
    async with contextlib.AsyncExitStack() as stack:
        admin = AIOKafkaAdminClient(**settings)
        stack.push_async_callback(admin.close)
        await admin.start()
        with pytest.raises(UnknownTopicOrPartitionError, match="new") as of_replicas:
            await check_topics(admin, {**TOPICS, "new": replace(APPS, name="new")}, 1, settings)
        with pytest.raises(UnknownTopicOrPartitionError, match="new") as of_settings:
            await topic_configs(admin, {"new": ["cleanup.policy"]})
    assert of_replicas.value.retriable
    assert of_settings.value.retriable


async def test_topics_are_created_once_a_broker_has_announced_itself(
    empty_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = client_settings(empty_broker.bootstrap, PLAINTEXT, 30)
    refuse(monkeypatch, "Unable to replicate the partition 1 time(s): All brokers are currently fenced.")
    assert await prepare_topics(settings, TOPICS, 2, 1) is None
    refuse(monkeypatch, "The target replication factor of 3 cannot be reached: only 1 broker(s) are registered.")
    with pytest.raises(ConflictError, match=r"cannot be created: The target replication factor"):
        await prepare_topics(settings, TOPICS, 2, 1)
    monkeypatch.undo()
    async with asyncio.timeout(60):
        while not await prepare_topics(settings, TOPICS, 2, 1):
            await asyncio.sleep(0.1)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with kafka(tmp_path) as broker:
        yield broker


@pytest.mark.long
async def test_a_broker_that_has_moved_is_found_at_the_address_of_the_settings(own_broker: KafkaBroker) -> None:
    """Also for look-ups by a log that knows the broker at its former address."""
    async with stalling_proxy(port_of(own_broker.bootstrap)) as proxy:
        log = await KafkaLog.connect(proxy.address, TOPICS, 1, timeout_s=6)
        await log.append([new_record("before")])
    await asyncio.to_thread(own_broker.stop)
    own_broker.move()
    await asyncio.to_thread(own_broker.start)
    async with stalling_proxy(port_of(own_broker.bootstrap), port_of(proxy.address)), asyncio.timeout(60):
        assert await ends_of(log, "test", [P0]) == {P0: 1}
        assert await append_until_accepted(log, [new_record("after")], "test") == [1]
        await log.close()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def refuse(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have the cluster answer that there are too few brokers to create topics, in these words."""

    async def create_topics(self: AIOKafkaAdminClient, topics: Sequence[NewTopic]) -> SimpleNamespace:
        return SimpleNamespace(topic_errors=[(topics[0].name, InvalidReplicationFactorError.errno, text)])

    monkeypatch.setattr(AIOKafkaAdminClient, "create_topics", create_topics)
