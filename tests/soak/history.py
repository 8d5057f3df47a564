"""Folds the event log for the checks: pushes, their audiences and outcomes, and the states of devices."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import AppOutcomes, OutcomeKind, PushFact
from protos.push.v1.push_pb2 import PushCommand, SendPush
from protos.registry.v1.devices_pb2 import Device
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.state.audience_parts import listed_targets
from services.domain.recorded_reasons import FixedReason
from services.domain.role_context import open_log
from services.domain.settings import Settings, load
from services.domain.topics import DELIVERIES, DEVICES, PUSH_COMMANDS, PUSHES, TASK_COMMANDS, decode
from services.errors import UnavailableError
from services.log.port import Log, Partition, Record
from services.log.topics import Topic
from services.net.rpc.clock_sync import MAX_SKEW_MS
from services.replica.epochs import Epochs

READ = (TASK_COMMANDS, PUSH_COMMANDS, DEVICES, PUSHES, DELIVERIES)
SETTLED = ("received", "failed", "expired", "cancelled", "dropped")
_RETRIES = 5


class DeviceNumber(NamedTuple):
    """The partition and number by which the log identifies a device."""

    partition: int
    number: int


class LoggedPush(NamedTuple):
    """The command of a push, its offset in the log, its time and its event id."""

    send: SendPush
    order: int
    time_ms: int
    event_id: bytes

    @property
    def is_listed(self) -> bool:
        return self.send.audience.HasField("devices")

    @property
    def expires_ms(self) -> int:
        return self.time_ms + self.send.period_s * 1000


class History:
    """The folded log; `read` brings it up to the log's current end.

    `tasks_ms`: by the message id of each push of a task, when the command that created the task was written.
    `withdrawn`: the messages that were dropped because the device changed its alias. `concluded` counts the final
    outcomes of each message on each device; a receipt of a withdrawn message is no further one, as the message may have
    been on its way. `clock_error_ms`: how far the times in the records may be wrong.
    """

    def __init__(self, log: Log, partitions: int, clock_error_ms: int = 0) -> None:
        self.sent: dict[int, LoggedPush] = {}
        self.tasks_ms: dict[int, int] = {}
        self.repeated_commands = 0
        self.cancels: dict[int, int] = {}
        self.started: dict[int, dict[int, BitMap]] = defaultdict(dict)
        self.started_at: dict[tuple[int, int], int] = {}
        self.started_ms: dict[int, int] = {}
        self.ended: dict[int, set[int]] = defaultdict(set)
        self.outcomes: dict[str, dict[int, set[DeviceNumber]]] = defaultdict(lambda: defaultdict(set))
        self.withdrawn: set[tuple[int, DeviceNumber]] = set()
        self.concluded: Counter[tuple[int, DeviceNumber]] = Counter()
        self._folded_outcomes: set[bytes] = set()
        self.devices: dict[tuple[str, DeviceNumber], Device] = {}
        self.partitions = partitions
        self.clock_error_ms = clock_error_ms
        self.errors: list[str] = []
        self._log = log
        self._epochs = Epochs()
        self._next = {
            Partition(topic.name, number): 0 for topic in READ for number in range(topic.partitions(partitions))
        }

    @classmethod
    async def open(cls, env: Mapping[str, str]) -> "History":
        """Open the log of an installation. On Kafka its processes have clocks of their own, which may differ."""
        settings = load(Settings, env)
        clock_error_ms = MAX_SKEW_MS if settings.kafka_bootstrap else 0
        return cls(await open_log(settings, read_only=True), settings.partitions, clock_error_ms)

    async def close(self) -> None:
        await self._log.close()

    async def read(self) -> None:
        """Read all topics on to their ends. UnavailableError: the log does not answer for minutes."""
        for topic in READ:
            await self._read_patiently(topic)

    def time_ms(self, record: Record, meta: Meta) -> int:
        """Return when the record was written."""
        return meta.time_ms

    def audience(self, msgid: int) -> set[tuple[int, DeviceNumber]]:
        """Return (message id, device) for the whole audience; in a token list each entry has its own message id."""
        sent = self.sent[msgid]
        if sent.is_listed:
            targets = listed_targets(sent.send)
            return {
                (each, DeviceNumber(partition, number))
                for partition, of_partition in targets.items()
                for number, ids in of_partition.items()
                for each in ids
            }
        bitmaps = self.started.get(msgid, {})
        return {(msgid, DeviceNumber(partition, number)) for partition, bitmap in bitmaps.items() for number in bitmap}

    def is_started(self, msgid: int) -> bool:
        """Return whether the push has started or ended in all its partitions: for a list in those of its devices."""
        sent = self.sent[msgid]
        wanted = listed_targets(sent.send).keys() if sent.is_listed else range(self.partitions)
        return set(wanted) <= self.started.get(msgid, {}).keys() | self.ended.get(msgid, set())

    def is_ended_unstarted(self, msgid: int, partition: int) -> bool:
        """Return whether the push was cancelled or failed before it started in the partition: no audience is there."""
        return partition in self.ended.get(msgid, ()) and partition not in self.started.get(msgid, {})

    def was_passed(self, msgid: int, by: int, partition: int) -> bool:
        """Return whether the push was held up by targeting, so that the later push `by` started before it."""
        passed, passing = self.started_at.get((msgid, partition)), self.started_at.get((by, partition))
        return not self.sent[msgid].is_listed and passed is not None and passing is not None and passing < passed

    def outcome(self, kind: str, msgid: int, device_number: DeviceNumber) -> bool:
        return device_number in self.outcomes[kind].get(msgid, ())

    def was_claimed(self, msgid: int, device_number: DeviceNumber) -> bool:
        """Return whether a channel such as Web Push was to show the message."""
        return self.outcome("claimed", msgid, device_number)

    def is_settled(self, first: int, msgid: int, device_number: DeviceNumber, is_ios: bool) -> bool:
        """Return whether a message of the push `first` has its final outcome on this device."""
        if device_number.partition in self.ended.get(first, ()):
            return True
        kinds = (*SETTLED, "handed_over", *(["sent"] if is_ios else []))
        return any(self.outcome(kind, msgid, device_number) for kind in kinds)

    async def _read_patiently(self, topic: Topic) -> None:
        """Read on, also where the brokers of a busy machine do not answer in time; what was read is not read again."""
        for _ in range(_RETRIES):
            with suppress(UnavailableError):
                return await self._read(topic)
        await self._read(topic)

    async def _read(self, topic: Topic) -> None:
        mine = [partition for partition in self._next if partition.topic == topic.name]
        ends = await self._log.ends(mine)
        reader = await self._log.open({partition: self._next[partition] for partition in mine})
        try:
            while any(self._next[partition] < ends[partition] for partition in mine):
                for record in await reader.read():
                    self._fold(record)
                    self._next[Partition(record.topic, record.partition)] = record.offset + 1
        finally:
            await reader.close()

    def _fold(self, record: Record) -> None:
        message = decode(record)
        if not self._epochs.admits(record, message):
            return
        match record.topic:
            case TASK_COMMANDS.name:
                for push in message.create.pushes:
                    self.tasks_ms.setdefault(push.msgid, self.time_ms(record, message.meta))
            case PUSH_COMMANDS.name:
                self._command(record, message)
            case DEVICES.name if message.HasField("device"):
                device = message.device
                self.devices[device.appkey, DeviceNumber(device.partition, device.number)] = device
            case PUSHES.name if message.WhichOneof("fact"):
                self._push_fact(message, record)
            case DELIVERIES.name if message.meta.event_id not in self._folded_outcomes:
                self._folded_outcomes.add(message.meta.event_id)
                for outcomes in message.outcomes.apps:
                    self.withdrawn |= _withdrawn(record.partition, outcomes)
                    for kind, msgid, device_number in rows(record.partition, outcomes):
                        self.outcomes[kind][msgid].add(device_number)
                        is_late = kind == "received" and (msgid, device_number) in self.withdrawn
                        self.concluded[msgid, device_number] += kind in SETTLED and not is_late

    def _command(self, record: Record, command: PushCommand) -> None:
        if command.HasField("cancel"):
            self.cancels.setdefault(command.cancel.msgid, record.offset)
            return
        sent = LoggedPush(command.send, record.offset, self.time_ms(record, command.meta), command.meta.event_id)
        first = self.sent.setdefault(command.send.msgid, sent)
        if first is not sent:
            self.repeated_commands += 1
            if first.send != sent.send and not _is_sent_again(first, sent):
                self.errors.append(f"two pushes have the message id {command.send.msgid}")

    def _push_fact(self, fact: PushFact, record: Record) -> None:
        if not fact.HasField("started"):
            self.ended[fact.msgid].add(fact.partition)
            return
        audience = BitMap.deserialize(fact.started.audience)
        before = self.started[fact.msgid].setdefault(fact.partition, audience)
        self.started_at.setdefault((fact.msgid, fact.partition), record.offset)
        self.started_ms[fact.msgid] = max(self.started_ms.get(fact.msgid, 0), self.time_ms(record, fact.meta))
        if before != audience:
            self.errors.append(f"push {fact.msgid} has two audiences in partition {fact.partition}")


def _is_sent_again(first: LoggedPush, sent: LoggedPush) -> bool:
    """Return whether both commands send one push of a task; the first one counts.

    Scheduling sends a push again where it does not know that it has been sent. Its tokens and aliases are then looked
    up anew, and what is left of the time to live of a task that was paused is shorter.
    """
    alike = []
    for each in (first, sent):
        alike.append(SendPush())
        alike[-1].CopyFrom(each.send)
        alike[-1].ClearField("audience")
        alike[-1].ClearField("period_s")
    return first.event_id == sent.event_id and alike[0] == alike[1]


def rows(partition: int, outcomes: AppOutcomes) -> Iterator[tuple[str, int, DeviceNumber]]:
    """Yield the kind, message id and device of each outcome."""
    msgids = numpy.frombuffer(outcomes.msgids, "<u8").tolist()
    numbers = numpy.frombuffer(outcomes.numbers, "<u4").tolist()
    for kind, msgid, number in zip(outcomes.kinds, msgids, numbers, strict=True):
        name = OutcomeKind.Name(OutcomeKind.ValueType(kind)).removeprefix("OUTCOME_KIND_").lower()
        yield name, msgid, DeviceNumber(partition, number)


def _withdrawn(partition: int, outcomes: AppOutcomes) -> set[tuple[int, DeviceNumber]]:
    """Return the messages that were dropped because the device changed its alias."""
    if FixedReason.ALIAS_CHANGED not in outcomes.reasons:
        return set()
    changed = 1 + list(outcomes.reasons).index(FixedReason.ALIAS_CHANGED)
    each = zip(rows(partition, outcomes), outcomes.reason_indexes, strict=True)
    return {
        (msgid, device_number) for (kind, msgid, device_number), index in each if kind == "dropped" and index == changed
    }
