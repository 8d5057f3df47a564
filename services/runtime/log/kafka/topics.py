"""The log's topics in a Kafka cluster: their creation, the check of those that exist, and trimming."""

from collections.abc import Iterable, Mapping
from ssl import SSLCertVerificationError, SSLError

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NoError,
    NotEnoughReplicasError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from services.runtime.errors import ConflictError
from services.runtime.log.kafka.client import REFUSALS, ClientSettings
from services.runtime.log.kafka.topic_check import check_topics, topic_configs, wanted
from services.runtime.log.port import Partition
from services.runtime.log.topics import Topic, Topics

_ALL_FENCED = "All brokers are currently fenced"
"""What a controller answers while its brokers start. With another text the same error is for good."""


async def prepare_topics(settings: ClientSettings, topics: Topics, partitions: int, replication: int) -> str | None:
    """Check the topics that exist and create the others; return the cluster's id, or None to have the call repeated.

    ConflictError: a topic's settings are wrong, or the cluster refuses a call or the client.
    """
    admin = AIOKafkaAdminClient(**settings)
    try:
        await admin.start()
        cluster = await admin.describe_cluster()
        if cluster["controller_id"] < 0:
            return None
        counts = {t["topic"]: len(t["partitions"]) for t in await admin.describe_topics()}
        _check_counts(counts, topics, partitions)
        missing = [topic for topic in topics.values() if topic.name not in counts]
        if missing:
            await _create(admin, missing, partitions, replication)
        else:
            await check_topics(admin, topics, replication, settings)
    except (TimeoutError, KafkaConnectionError, KafkaTimeoutError):
        await _check_connection(settings)
        return None
    except KafkaError as error:
        if error.retriable:
            return None
        raise
    finally:
        await admin.close()
    return None if missing else cluster["cluster_id"] or ""


async def delete_before(settings: ClientSettings, partition: Partition, before: int) -> None:
    """Delete the records of a partition before an offset. KafkaError: they are not deleted."""
    admin = AIOKafkaAdminClient(**settings)
    try:
        await admin.start()
        await admin.delete_records({TopicPartition(*partition): RecordsToDelete(before_offset=before)})
    finally:
        await admin.close()


async def check_replicas(settings: ClientSettings, topics: Topics) -> None:
    """Check that every partition has a leader and as many replicas in sync as an append needs.

    KafkaError: a partition has not, or the cluster cannot be reached.
    """
    admin = AIOKafkaAdminClient(**settings)
    try:
        await admin.start()
        least = await _min_in_sync(admin, topics)
        for topic in await admin.describe_topics(list(topics)):
            for partition in topic["partitions"]:
                name = f"{topic['topic']}/{partition['partition']}"
                if partition["leader"] < 0:
                    raise LeaderNotAvailableError(f"{name} has no leader")
                if len(partition["isr"]) < least[topic["topic"]]:
                    raise NotEnoughReplicasError(f"{name} has {len(partition['isr'])} replicas in sync")
    finally:
        await admin.close()


async def _min_in_sync(admin: AIOKafkaAdminClient, topics: Topics) -> dict[str, int]:
    found = await topic_configs(admin, {name: ["min.insync.replicas"] for name in topics})
    return {name: int(values["min.insync.replicas"]) for name, values in found.items()}


async def _check_connection(settings: ClientSettings) -> None:
    """Raise the reason why a broker refuses this client for good; aiokafka only logs it."""
    connection = {name: value for name, value in settings.items() if name != "bootstrap_servers"}
    for host, port, _ in collect_hosts(settings["bootstrap_servers"]):
        try:
            (await create_conn(host, port, **connection)).close()
        except SSLCertVerificationError as error:
            raise ConflictError(
                f"the certificate of Kafka at {host}:{port} is not trusted: {error.verify_message}"
            ) from error
        except REFUSALS:
            raise
        except (OSError, KafkaError) as error:
            if isinstance(error.__cause__, SSLError):
                raise ConflictError(f"Kafka at {host}:{port} ends the connection: {error.__cause__}") from error


def _check_counts(counts: Mapping[str, int], topics: Topics, partitions: int) -> None:
    for topic in topics.values():
        wanted = topic.partitions(partitions)
        if counts.get(topic.name, wanted) != wanted:
            raise ConflictError(
                f"the Kafka topic {topic.name} has {counts[topic.name]} partitions, but {wanted} are configured: their"
                " number can never change, because each device belongs to one of them"
            )


async def _create(admin: AIOKafkaAdminClient, topics: Iterable[Topic], partitions: int, replication: int) -> None:
    response = await admin.create_topics(
        [
            NewTopic(topic.name, topic.partitions(partitions), replication, topic_configs=wanted(topic, replication))
            for topic in topics
        ]
    )
    for name, code, message in response.topic_errors:
        error = for_code(code)
        if error not in (NoError, TopicAlreadyExistsError):
            if error.retriable:
                raise error(message)
            if error is TopicAuthorizationFailedError:
                raise ConflictError(
                    f"the Kafka topic {name} does not exist, or this user may not see it. `carillon acls --apply`, with"
                    " an administrator's settings, makes the topics, the users and their rights"
                )
            if _ALL_FENCED in (message or ""):
                raise LeaderNotAvailableError(message)
            raise ConflictError(f"the Kafka topic {name} cannot be created: {message or error.message}")
