"""Topics that were made a moment ago, which one broker lists and the next one does not know yet."""

import contextlib
from dataclasses import replace

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import UnknownTopicOrPartitionError

from services.domain.topics import APPS, TOPICS
from services.runtime.log.kafka.client import client_settings
from services.runtime.log.kafka.security import PLAINTEXT
from services.runtime.log.kafka.topic_check import check_topics, topic_configs
from testkit.kafka.broker import KafkaBroker
from tests.contract.log.conftest import Connect

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
