"""The nineteen topics of Carillon's event log, the key of a device's records, and each user's rights on topics."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from protos.accounts.v1.accounts_pb2 import AccountFact, LogInFact
from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.gateway.v1.sessions_pb2 import SessionFact
from protos.push.v1.push_pb2 import PushCommand
from protos.registry.v1.apps_pb2 import AppFact
from protos.registry.v1.devices_pb2 import DeviceCommand, DeviceFact
from protos.registry.v1.erasures_pb2 import ErasureFact
from protos.registry.v1.keys_pb2 import KeyFact
from protos.runtime.v1.claims_pb2 import MessageIdFact, NonceFact
from protos.runtime.v1.instances_pb2 import InstanceFact
from protos.runtime.v1.processes_pb2 import ProcessFact
from protos.runtime.v1.refusals_pb2 import RefusalFact
from protos.scheduling.v1.scheduling_pb2 import TaskCommand, TaskFact
from protos.webhooks.v1.push_ends_pb2 import PushEndFact
from services.domain.call_permissions import EVERY_ROLE
from services.log.decoding import decode as decode_with
from services.log.port import Partition, Record
from services.log.topics import Topic, Topics
from services.replica.instances import INSTANCES_TOPIC
from services.replica.own_status import PROCESSES_TOPIC

_MEMBERS = ("registry", "scheduling", "targeting", "delivery")
"""The roles whose processes say in `instances` that they are alive."""


def device_key(appkey: str, token: str) -> bytes:
    """Return the key of a device's records, from which their partition follows."""
    return f"{appkey}/{token}".encode()


def _key_of_command(command: DeviceCommand) -> bytes | None:
    return device_key(command.appkey, command.token) if command.token else None


def _key_of_device(fact: DeviceFact) -> bytes | None:
    return device_key(fact.device.appkey, fact.device.token) if fact.HasField("device") else None


DEVICE_COMMANDS = Topic(
    "device-commands",
    DeviceCommand,
    key_of=_key_of_command,
    written_by=("edge", "gateway", "delivery", "registry"),
    read_by=("registry", "analytics"),
    answered_by=("registry",),
)
PUSH_COMMANDS = Topic(
    "push-commands",
    PushCommand,
    single=True,
    written_by=("edge", "console", "scheduling"),
    read_by=("delivery", "analytics", "webhooks"),
    answered_by=("delivery",),
)
TASK_COMMANDS = Topic(
    "task-commands",
    TaskCommand,
    written_by=("edge", "console", "accounts"),
    read_by=("scheduling",),
    answered_by=("scheduling",),
)
APPS = Topic("apps", AppFact, single=True, compacted=True, written_by=("registry",), read_by=EVERY_ROLE)
KEYS = Topic("keys", KeyFact, single=True, compacted=True, forgets=True, written_by=("registry",), read_by=EVERY_ROLE)
# An alias may have devices in any partition, so each registry's alias index reads all of `devices` and `sessions`.
DEVICES = Topic(
    "devices",
    DeviceFact,
    compacted=True,
    removable=True,
    key_of=_key_of_device,
    written_by=("registry",),
    read_by=("registry", "targeting", "analytics", "webhooks"),
    answered_by=("registry", "targeting"),
    whole_read_by=("registry",),
)
SESSIONS = Topic(
    "sessions",
    SessionFact,
    written_by=("gateway", "edge", "registry"),
    read_by=("registry", "targeting", "analytics"),
    answered_by=("registry", "targeting"),
    whole_read_by=("registry",),
)
TASKS = Topic("tasks", TaskFact, written_by=("scheduling",), read_by=("scheduling", "analytics"))
PUSHES = Topic("pushes", PushFact, written_by=("delivery",), read_by=("delivery", "analytics", "webhooks"))
DELIVERIES = Topic("deliveries", DeliveryFact, written_by=("delivery",), read_by=("delivery", "analytics", "webhooks"))
MESSAGE_IDS = Topic(
    "message-ids", MessageIdFact, single=True, written_by=("edge", "console"), read_by=("edge", "console")
)
REQUEST_NONCES = Topic("request-nonces", NonceFact, single=True, written_by=("edge",), read_by=("edge",))
REFUSALS = Topic("refusals", RefusalFact, single=True, written_by=("edge",), read_by=("analytics",))
INSTANCES = Topic(INSTANCES_TOPIC, InstanceFact, single=True, compacted=True, written_by=_MEMBERS, read_by=EVERY_ROLE)
ACCOUNTS = Topic(
    "accounts",
    AccountFact,
    single=True,
    kept=True,
    written_by=("accounts",),
    read_by=("accounts", "console", "analytics", "webhooks"),
)
LOG_INS = Topic("log-ins", LogInFact, single=True, written_by=("accounts",), read_by=("accounts", "analytics"))
DRAFTS = Topic(
    "drafts", DraftFact, single=True, written_by=("accounts",), read_by=("accounts", "analytics", "webhooks")
)
ERASURES = Topic("erasures", ErasureFact, single=True, kept=True, written_by=("registry",), read_by=EVERY_ROLE)
PUSH_ENDS = Topic("push-ends", PushEndFact, single=True, written_by=("webhooks",), read_by=("webhooks",))
PROCESSES = Topic(
    PROCESSES_TOPIC,
    ProcessFact,
    single=True,
    compacted=True,
    written_by=EVERY_ROLE,
    read_by=("console", "edge", "gateway"),
)

TOPICS: Topics = {
    topic.name: topic
    for topic in (
        DEVICE_COMMANDS,
        PUSH_COMMANDS,
        TASK_COMMANDS,
        APPS,
        KEYS,
        DEVICES,
        SESSIONS,
        TASKS,
        PUSHES,
        DELIVERIES,
        MESSAGE_IDS,
        REQUEST_NONCES,
        REFUSALS,
        INSTANCES,
        ACCOUNTS,
        LOG_INS,
        DRAFTS,
        PUSH_ENDS,
        PROCESSES,
        ERASURES,
    )
}


ERASURES_PARTITION = Partition(ERASURES.name, 0)


def decode(record: Record) -> Any:
    """Return the record's envelope. DecodeError: the value is not a message of the topic's type."""
    return decode_with(TOPICS, record)


def archived_partitions(partitions: int) -> list[Partition]:
    """Return the partitions whose old records go to the archive. `partitions`: how many the
    installation gives to each topic that is not `single`.
    """
    return [
        Partition(topic.name, number)
        for topic in TOPICS.values()
        if topic.archived
        for number in range(topic.partitions(partitions))
    ]


# The users of an installation's Kafka log, and the rights of each on the topics, which follow from `Topic`.
#
# Kafka's ACLs, the tests of a broker and the table in docs/architecture/event-log.md all come from here. A user may
# do nothing that is not named: neither make, delete nor change topics, nor use groups or transactions.

OPERATOR = "operator"
"""The user of `carillon status` and of replays for inspection: reads every topic."""

ARCHIVE = "archive"
"""The user of `carillon archive`: reads old records, and deletes what the archive has."""

UP = "up"
"""The user of `carillon up`, whose one process runs all roles and archives."""

ROLE_USERS = (*EVERY_ROLE, OPERATOR, ARCHIVE)
"""The users of an installation with a process for each role."""


class Right(Enum):
    """An operation on a topic, by Kafka's name. All users need the first two on all topics.

    A process checks at its start that each topic has the right partitions and settings, and later that each has enough
    replicas in sync. DESCRIBE also tells the offsets of a topic's ends, but nothing of its records.
    """

    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    READ = "Read"
    WRITE = "Write"
    DELETE = "Delete"


def rights(user: str) -> Mapping[str, frozenset[Right]]:
    """Return the user's rights on each topic, by the topic's name."""
    return {name: frozenset(_rights(user, topic)) for name, topic in TOPICS.items()}


def _rights(user: str, topic: Topic) -> set[Right]:
    found = {Right.DESCRIBE, Right.DESCRIBE_CONFIGS}
    if user in (OPERATOR, UP) or user in topic.read_by or (user == ARCHIVE and topic.archived):
        found.add(Right.READ)
    if user == UP or user in topic.written_by:
        found.add(Right.WRITE)
    if user in (ARCHIVE, UP) and topic.archived:
        found.add(Right.DELETE)
    return found
