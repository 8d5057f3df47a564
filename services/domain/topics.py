"""The nine topics: what they are called, what is in them, and which partition a key belongs to."""

import zlib
from dataclasses import dataclass

from google.protobuf.message import Message

from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.gateway.v1.sessions_pb2 import SessionFact
from protos.push.v1.push_pb2 import PushCommand
from protos.registry.v1.apps_pb2 import AppFact
from protos.registry.v1.devices_pb2 import DeviceCommand, DeviceFact
from protos.scheduling.v1.scheduling_pb2 import TaskCommand, TaskFact


@dataclass(frozen=True, slots=True)
class Topic:
    """`single` topics have one partition and so one order; the others have as many as the installation.

    `answered_by` names the roles whose answers must show a record once its writer's caller was answered.
    """

    name: str
    envelope: type[Message]
    single: bool = False
    compacted: bool = False
    answered_by: tuple[str, ...] = ()

    def partitions(self, installation: int) -> int:
        return 1 if self.single else installation


DEVICE_COMMANDS = Topic("device-commands", DeviceCommand, answered_by=("registry",))
PUSH_COMMANDS = Topic("push-commands", PushCommand, single=True, answered_by=("delivery",))
TASK_COMMANDS = Topic("task-commands", TaskCommand, answered_by=("scheduling",))
APPS = Topic("apps", AppFact, single=True, compacted=True)
DEVICES = Topic("devices", DeviceFact, compacted=True, answered_by=("registry", "targeting"))
SESSIONS = Topic("sessions", SessionFact, answered_by=("registry", "targeting"))
TASKS = Topic("tasks", TaskFact)
PUSHES = Topic("pushes", PushFact)
DELIVERIES = Topic("deliveries", DeliveryFact)

TOPICS: dict[str, Topic] = {
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
    )
}


def device_key(appkey: str, token: str) -> bytes:
    """The key of a device's records."""
    return f"{appkey}/{token}".encode()


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: the same for every log and for ever (CRC-32)."""
    return zlib.crc32(key) % partitions


def owned(partitions: int, shard: int, shards: int) -> list[int]:
    """The partitions that instance `shard` of `shards` owns."""
    return list(range(shard, partitions, shards))
