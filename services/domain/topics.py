"""The sixteen topics of Carillon's event log, and the key of a device's records."""

from typing import Any

from protos.accounts.v1.accounts_pb2 import AccountFact, LogInFact
from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.gateway.v1.sessions_pb2 import SessionFact
from protos.push.v1.push_pb2 import PushCommand
from protos.registry.v1.apps_pb2 import AppFact
from protos.registry.v1.devices_pb2 import DeviceCommand, DeviceFact
from protos.runtime.v1.claims_pb2 import MessageIdFact, NonceFact
from protos.runtime.v1.instances_pb2 import InstanceFact
from protos.runtime.v1.processes_pb2 import ProcessFact
from protos.scheduling.v1.scheduling_pb2 import TaskCommand, TaskFact
from services.domain.call_permissions import EVERY_ROLE
from services.runtime.log.decoding import decode as decode_with
from services.runtime.log.port import Partition, Record
from services.runtime.log.topics import Topic, Topics
from services.runtime.ownership.directory import INSTANCES_TOPIC
from services.runtime.status.announcer import PROCESSES_TOPIC

_MEMBERS = ("registry", "scheduling", "targeting", "delivery")
"""The roles whose processes say in `instances` that they are alive."""

DEVICE_COMMANDS = Topic(
    "device-commands",
    DeviceCommand,
    written_by=("edge", "gateway", "delivery", "registry"),
    read_by=("registry", "analytics"),
    answered_by=("registry",),
)
PUSH_COMMANDS = Topic(
    "push-commands",
    PushCommand,
    single=True,
    written_by=("edge", "console", "scheduling"),
    read_by=("delivery", "analytics"),
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
# The devices of one alias may be in any partition, so the alias index of each registry reads all of these two topics.
DEVICES = Topic(
    "devices",
    DeviceFact,
    compacted=True,
    written_by=("registry",),
    read_by=("registry", "targeting", "analytics"),
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
PUSHES = Topic("pushes", PushFact, written_by=("delivery",), read_by=("delivery", "analytics"))
DELIVERIES = Topic("deliveries", DeliveryFact, written_by=("delivery",), read_by=("delivery", "analytics"))
MESSAGE_IDS = Topic(
    "message-ids", MessageIdFact, single=True, written_by=("edge", "console"), read_by=("edge", "console")
)
REQUEST_NONCES = Topic("request-nonces", NonceFact, single=True, written_by=("edge",), read_by=("edge",))
INSTANCES = Topic(INSTANCES_TOPIC, InstanceFact, single=True, compacted=True, written_by=_MEMBERS, read_by=EVERY_ROLE)
ACCOUNTS = Topic(
    "accounts",
    AccountFact,
    single=True,
    kept=True,
    written_by=("accounts",),
    read_by=("accounts", "console", "analytics"),
)
LOG_INS = Topic("log-ins", LogInFact, single=True, written_by=("accounts",), read_by=("accounts", "analytics"))
DRAFTS = Topic("drafts", DraftFact, single=True, written_by=("accounts",), read_by=("accounts", "analytics"))
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
        DEVICES,
        SESSIONS,
        TASKS,
        PUSHES,
        DELIVERIES,
        MESSAGE_IDS,
        REQUEST_NONCES,
        INSTANCES,
        ACCOUNTS,
        LOG_INS,
        DRAFTS,
        PROCESSES,
    )
}


def device_key(appkey: str, token: str) -> bytes:
    """Return the key of a device's records."""
    return f"{appkey}/{token}".encode()


def decode(record: Record) -> Any:
    """Return the record's envelope. DecodeError: the value is not a message of the topic's type."""
    return decode_with(TOPICS, record)


def archived_partitions(partitions: int) -> list[Partition]:
    """Return the partitions whose old records go to the archive. `partitions`: the installation's number."""
    return [
        Partition(topic.name, number)
        for topic in TOPICS.values()
        if topic.archived
        for number in range(topic.partitions(partitions))
    ]
