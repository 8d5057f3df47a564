"""Appends commands to the log: stamps them, chooses their partition, and waits on request until they are applied."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from protos.push.v1.push_pb2 import PushCommand
from protos.registry.v1.devices_pb2 import DeviceCommand
from protos.runtime.v1.log_pb2 import Origin, Position
from protos.scheduling.v1.scheduling_pb2 import TaskCommand
from services.domain.ids import RecordStamp
from services.domain.topics import DEVICE_COMMANDS, PUSH_COMMANDS, TASK_COMMANDS, TOPICS, device_key
from services.errors import Code, InputError
from services.log.port import MAX_RECORD_BYTES, Log, NewRecord, Partition
from services.log.topics import Topic, partition_of
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.process.metrics import APPENDED
from services.replica.peers import Peers


class Command(NamedTuple):
    """An envelope of the topic to append under `key`. `partition` None: the partition of the key.

    An event id and a time that the envelope's meta has already are kept.
    """

    topic: Topic
    key: bytes
    envelope: Any
    partition: int | None = None


def device_command(command: DeviceCommand) -> Command:
    return Command(DEVICE_COMMANDS, device_key(command.appkey, command.token), command)


def push_command(command: PushCommand) -> Command:
    msgid = command.send.msgid or command.cancel.msgid
    return Command(PUSH_COMMANDS, str(msgid).encode(), command)


def task_command(command: TaskCommand) -> Command:
    return Command(TASK_COMMANDS, command.task_key.encode(), command)


class CommandWriter:
    """Appends one role's commands to the log. `partitions` is the installation's number."""

    def __init__(self, role: str, log: Log, peers: Peers, clock: Clock, partitions: int) -> None:
        self._role = role
        self._stamp = RecordStamp(role)
        self._log = log
        self._peers = peers
        self._clock = clock
        self._partitions = partitions
        self._appended = {topic: APPENDED.labels(topic) for topic in TOPICS}

    async def append(self, commands: Sequence[Command], origin: Origin | None = None) -> list[Position]:
        """Stamp the commands and append them; return the position of each once all are durable.

        InputError: a record is larger than the log accepts; nothing was appended. Other errors as for Log.append.
        """
        now_ms = self._clock.now_ms()
        for command in commands:
            self._stamp.complete(command.envelope.meta, now_ms, origin)
        new_records = [self._new_record(command) for command in commands]
        reached(Point.COMMAND_CHECKED, self._role)
        offsets = await self._log.append(new_records)
        reached(Point.COMMAND_APPENDED, self._role)
        for new_record in new_records:
            self._appended[new_record.topic].inc()
        return [
            Position(topic=new_record.topic, partition=new_record.partition, offset=offset)
            for new_record, offset in zip(new_records, offsets, strict=True)
        ]

    async def append_and_wait(self, commands: Sequence[Command], origin: Origin | None = None) -> None:
        """Append as `append` does; return once every role that answers for the commands has applied them.

        DeadlineError: the commands are in the log, but a role is behind.
        """
        last: dict[tuple[str, int], Position] = {}
        for position in await self.append(commands, origin):
            known = last.setdefault((position.topic, position.partition), position)
            known.offset = max(known.offset, position.offset)
        await self._peers.wait_applied(last.values())

    async def wait_applied(self, topic: Topic, partition: int) -> None:
        """Return once every role that answers for the topic has applied what the log holds of the partition now.

        DeadlineError: a role is behind.
        """
        ends = await self._log.ends([Partition(topic.name, partition)])
        last = [Position(topic=each.topic, partition=each.number, offset=end - 1) for each, end in ends.items() if end]
        await self._peers.wait_applied(last)

    def _new_record(self, command: Command) -> NewRecord:
        value = command.envelope.SerializeToString()
        if len(command.key) + len(value) > MAX_RECORD_BYTES:
            raise InputError(Code.RECORD_TOO_LARGE, size=len(value))
        partition = command.partition
        if partition is None:
            partition = partition_of(command.key, command.topic.partitions(self._partitions))
        return NewRecord(command.topic.name, partition, command.key, value)
