"""The log's topics in a Kafka cluster: their creation, the check of those that exist, and trimming."""

import json
from collections.abc import Iterable, Mapping
from itertools import cycle, islice
from ssl import SSLCertVerificationError, SSLError
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
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
    UnknownTopicOrPartitionError,
    for_code,
)

from services.errors import ConflictError
from services.log.kafka.client import REFUSALS, ClientSettings
from services.log.port import Partition
from services.log.topics import Topic, Topics

# The settings that the log's topics need in Kafka, and the check of existing topics, with commands that fix them.

_MAX_MESSAGE_BYTES = 1_200_000
_AT_LEAST = ("max.message.bytes", "min.insync.replicas")
_PLAN = "/tmp/carillon-replicas.json"  # noqa: S108 - a file on the operator's machine
_FORGETS = {
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "3600000",
    "delete.retention.ms": "60000",
}
"""A replaced record is gone within about an hour; with Kafka's own settings it may stay for weeks."""

Values = Mapping[str, str]


def least_in_sync(replication: int) -> int:
    """Return how many replicas must have a record before it counts as appended: a majority, so 2 of 3."""
    return replication // 2 + 1


def wanted(topic: Topic, replication: int) -> dict[str, str]:
    """Return the settings of a topic with these replicas: no record is lost by age, by size or with one broker."""
    if topic.compacted:
        kept = {"cleanup.policy": "compact"}
    else:
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    if topic.forgets:
        kept |= _FORGETS
    return {
        **kept,
        "max.message.bytes": str(_MAX_MESSAGE_BYTES),
        "min.insync.replicas": str(least_in_sync(replication)),
        "unclean.leader.election.enable": "false",
    }


async def check_topics(admin: AIOKafkaAdminClient, topics: Topics, replication: int, client: ClientSettings) -> None:
    """Check the replicas and the settings of topics that exist.

    ConflictError: some differ from what the service needs; the message holds the commands that fix all of them.
    UnknownTopicOrPartitionError: the broker that was asked does not know a topic yet that was just created.
    """
    replicas = {
        (topic["topic"], partition["partition"]): list(partition["replicas"])
        for topic in await admin.describe_topics(list(topics))
        for partition in topic["partitions"]
    }
    if unknown := set(topics) - {topic for topic, _ in replicas}:
        raise UnknownTopicOrPartitionError(f"the broker does not know {', '.join(sorted(unknown))} yet")
    fewest = {name: min(len(of) for (topic, _), of in replicas.items() if topic == name) for name in topics}
    needed = {topic.name: wanted(topic, replication) for topic in topics.values()}
    found = await topic_configs(admin, needed)
    changes = {
        name: {key: value for key, value in of_topic.items() if not _suffices(key, found[name][key], value)}
        for name, of_topic in needed.items()
    }
    few = [name for name, count in fewest.items() if count < replication]
    if not few and not any(changes.values()):
        return
    problems = [f"{name} has {fewest[name]} replicas instead of {replication}" for name in few] + [
        f"{name} has {key}={found[name][key]} instead of {value}"
        for name, of_topic in changes.items()
        for key, value in of_topic.items()
    ]
    tools = Tools(client)
    commands = [tools.alter(name, of_topic) for name, of_topic in changes.items() if of_topic]
    if few:
        brokers = [broker["node_id"] for broker in (await admin.describe_cluster())["brokers"]]
        if len(brokers) < replication:
            raise ConflictError(
                f"CARILLON_KAFKA_REPLICATION is {replication}, but the Kafka cluster has {len(brokers)} brokers:"
                " start more brokers, or lower the setting"
            )
        commands.insert(0, tools.reassign(_plan(replicas, few, brokers, replication)))
    raise ConflictError(
        f"Kafka could lose answered records, because {'; '.join(problems)}. Fix it with: {' && '.join(commands)}"
    )


async def topic_configs(admin: AIOKafkaAdminClient, keys: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
    """Return the values of these settings, by topic. KafkaError: the broker that was asked does not know a topic."""
    requests = [
        ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(of_topic, "")) for name, of_topic in keys.items()
    ]
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(requests):
        for code, message, _, name, values in response.resources:
            if code:
                raise for_code(code)(f"the settings of {name}: {message}")
            found[name] = {key: value for key, value, *_ in values}
    return found


class Tools:
    """Command lines of Kafka's own tools for one cluster."""

    def __init__(self, client: ClientSettings) -> None:
        self.cluster = f"--bootstrap-server {','.join(client['bootstrap_servers'])}"
        if client["security_protocol"] != "PLAINTEXT":
            self.cluster += " --command-config client.properties"

    def alter(self, topic: str, values: Values) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in values.items())
        return (
            f"kafka-configs.sh {self.cluster} --alter --entity-type topics --entity-name {topic} --add-config {pairs}"
        )

    def create(self, topic: Topic, partitions: int, replication: int) -> str:
        pairs = " ".join(f"--config {key}={value}" for key, value in wanted(topic, replication).items())
        return (
            f"kafka-topics.sh {self.cluster} --create --if-not-exists --topic {topic.name}"
            f" --partitions {topic.partitions(partitions)} --replication-factor {replication} {pairs}"
        )

    def reassign(self, plan: str) -> str:
        return (
            f"echo '{plan}' > {_PLAN} && kafka-reassign-partitions.sh {self.cluster}"
            f" --reassignment-json-file {_PLAN} --execute"
        )


def _suffices(key: str, found: str, needed: str) -> bool:
    return int(found) >= int(needed) if key in _AT_LEAST else found == needed


def _plan(
    replicas: Mapping[tuple[str, int], list[int]], topics: list[str], brokers: list[int], replication: int
) -> str:
    """Return a reassignment that keeps every replica, the leader first, and adds the missing replicas."""
    partitions: list[dict[str, Any]] = []
    for at, ((topic, partition), present) in enumerate(sorted(replicas.items())):
        if topic in topics and len(present) < replication:
            others = [broker for broker in islice(cycle(brokers), at, at + len(brokers)) if broker not in present]
            added = others[: replication - len(present)]
            partitions.append({"topic": topic, "partition": partition, "replicas": [*present, *added]})
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))


_ALL_FENCED = "All brokers are currently fenced"
"""Text of a controller's error while its brokers start. With any other text the same error is permanent."""


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

    KafkaError: a partition lacks a leader or replicas, or the cluster cannot be reached.
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
