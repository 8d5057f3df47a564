"""Records of the log as columns of the analytics store."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from analytics.audit.changes import command_detail, command_name
from analytics.audit.enum_names import enum_name
from analytics.audit.expression import readable
from analytics.ingestion.attributes import ATTRIBUTES, DeviceAttributes
from analytics.ingestion.audience_values import by_value
from analytics.ingestion.broadcast_ids import Broadcasts
from analytics.ingestion.connection_levels import LevelColumns
from analytics.ingestion.connection_spans import Spans
from analytics.ingestion.device_references import unknown_in
from analytics.ingestion.outcomes import OutcomeColumns
from analytics.ingestion.registrations import Registrations
from analytics.store.tables import TABLES
from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.gateway.v1.sessions_pb2 import SessionEvent, SessionEventKind, SessionFact
from protos.push.v1.push_pb2 import Audience, Devices, Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import AppFact, Platform
from protos.registry.v1.devices_pb2 import Device, DeviceCommand, DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.domain.topics import (
    APPS,
    DELIVERIES,
    DEVICE_COMMANDS,
    DEVICES,
    PUSH_COMMANDS,
    PUSHES,
    SESSIONS,
    TASKS,
    decode,
)
from services.runtime.log.port import Record

SOURCES = (DEVICES, PUSH_COMMANDS, TASKS, SESSIONS, PUSHES, DELIVERIES, DEVICE_COMMANDS, APPS)
"""The topics that are read."""

_FIRST = (DEVICES.name, PUSH_COMMANDS.name)
_GREATEST_ID = 2**64 - 1


class Row(NamedTuple):
    """One row of a table, its columns in the order of TABLES."""

    table: str
    values: tuple[Any, ...]


class Translation:
    """Records of one batch after another into tables; what is known of devices and broadcasts outlives it."""

    def __init__(
        self,
        attributes: DeviceAttributes,
        broadcasts: Broadcasts,
        registrations: Registrations,
        spans: Spans,
        reader: str,
        *,
        stores_commands: bool = True,
    ) -> None:
        """`reader` is who will have stored what cannot be stored twice; one reader of a store `stores_commands`."""
        self._attributes = attributes
        self._broadcasts = broadcasts
        self._registrations = registrations
        self._spans = spans
        self._reader = reader
        self._stores_commands = stores_commands

    def unknown(self, records: Sequence[Record]) -> set[int]:
        """The partitions in which the records name devices that nothing is known of, nor will be by the records."""
        return unknown_in(records, self._registrations)

    def tables(self, records: Sequence[Record], park: Callable[[Record, Exception], None]) -> dict[str, pa.Table]:
        """The rows of each table that gets some. The same records give the same rows in the same order.

        Devices and commands come first, so that what happens in the same batch is stored with their new attributes.
        """
        rows: dict[str, list[tuple[Any, ...]]] = {}
        outcomes = OutcomeColumns(self._attributes, self._broadcasts)
        levels = LevelColumns(self._attributes, self._spans, self._reader)
        for record in sorted(records, key=_turn):
            try:
                for row in self._translate(record, outcomes, levels):
                    rows.setdefault(row.table, []).append(row.values)
            except (DecodeError, ValueError, IndexError) as error:
                park(record, error)
        listed = {table: _table(TABLES[table], of_table) for table, of_table in rows.items()}
        return {**listed, **outcomes.tables(), **levels.tables()}

    def _translate(self, record: Record, outcomes: OutcomeColumns, levels: LevelColumns) -> Sequence[Row]:
        message = decode(record)
        match message:
            case DeviceFact():
                return self._device(record, message)
            case PushCommand():
                rows = self._command(record, message)
                return rows if self._stores_commands else []
            case TaskFact():
                return _task(record, message)
            case DeviceCommand():
                return [_device_command(record, message)]
            case AppFact():
                return _app(record, message)
            case SessionFact():
                return self._sessions(record, message, levels)
            case PushFact():
                return self._push_partition(record, message)
            case DeliveryFact():
                outcomes.add(record, message)
                return []
            case _:
                raise ValueError(f"{record.topic} is not for analytics")

    def _device(self, record: Record, message: DeviceFact) -> list[Row]:
        match message.WhichOneof("fact"):
            case "device":
                device = message.device
                known = device.attributes
                self._attributes.note(device.appkey, record.partition, device.number, known)
                values = (
                    *(device.appkey, record.partition, device.number, device.token, message.meta.time_ms),
                    *(_platform(device.platform), device.registered_ms, device.removed_ms, device.removed_reason),
                    *(device.HasField("alias"), device.alias, list(device.tags), list(device.stags), known.model),
                    *(getattr(known, name) for name in ATTRIBUTES),
                    *(_event_id(message.meta), *_place(record)),
                )
                return [Row("devices", values), *self._registration(record, device)]
            case "revocations" | None:
                return []
            case never:
                assert_never(never)

    def _registration(self, record: Record, device: Device) -> list[Row]:
        if not self._registrations.is_first(device.appkey, record.partition, device.number):
            return []
        registered = (device.appkey, device.registered_ms, record.partition, device.number)
        values = (getattr(device.attributes, name) for name in ATTRIBUTES)
        return [Row("registrations", (*registered, *values, *_place(record)))]

    def _sessions(self, record: Record, message: SessionFact, levels: LevelColumns) -> list[Row]:
        match message.WhichOneof("fact"):
            case "batch":
                return [self._session(record, index, event, levels) for index, event in enumerate(message.batch.events)]
            case "counts":
                counts = message.counts
                return [
                    Row("connection_counts", (app, counts.minute_ms, counts.gateway, count, *_place(record, index)))
                    for index, (app, count) in enumerate(sorted(counts.connections_by_app.items()))
                ]
            case None:
                return []
            case never:
                assert_never(never)

    def _session(self, record: Record, index: int, event: SessionEvent, levels: LevelColumns) -> Row:
        gateway = record.key.decode(errors="replace") if event.connection else ""
        known = self._attributes.codes_of(event.appkey, record.partition, event.number)
        levels.add(record.partition, gateway, event, known)
        values = (
            *(event.appkey, record.partition, event.number, event.token),
            enum_name(SessionEventKind.DESCRIPTOR, event.kind, "SESSION_EVENT_KIND_"),
            *(event.time_ms, event.connection, event.reason, gateway),
            *(*self._attributes.strings(known), *_place(record, index)),
        )
        return Row("sessions", values)

    def _command(self, record: Record, message: PushCommand) -> list[Row]:
        match message.WhichOneof("command"):
            case "send":
                send, time_ms = message.send, message.meta.time_ms
                self._broadcasts.note(send.msgid, is_broadcast=send.kind != Kind.KIND_UNICAST, time_ms=time_ms)
                return [Row("pushes", _push(send, time_ms, message.meta, _place(record)))]
            case "cancel":
                cancel = message.cancel
                origin = (*_origin(message.meta), _event_id(message.meta))
                values = (cancel.msgid, cancel.appkey, message.meta.time_ms, *origin, *_place(record))
                return [Row("push_cancels", values)]
            case None:
                return []
            case never:
                assert_never(never)

    def _push_partition(self, record: Record, message: PushFact) -> list[Row]:
        def row(event: str, audience: bytes = b"", count: int = 0, expires_ms: int = 0) -> Row:
            push = (message.msgid, message.appkey, record.partition, event, message.meta.time_ms)
            return Row("push_partitions", (*push, audience, count, expires_ms, *_place(record)))

        match message.WhichOneof("fact"):
            case "started":
                started = message.started
                values = self._values(record, message, BitMap.deserialize(started.audience))
                return [row("started", started.audience, started.count, started.expires_ms), *values]
            case "cancelled":
                return [row("cancelled")]
            case "finished":
                return [row("finished")]
            case None:
                return []
            case never:
                assert_never(never)

    def _values(self, record: Record, message: PushFact, audience: BitMap) -> list[Row]:
        if not audience:
            return []
        values = by_value(self._attributes, message.appkey, record.partition, audience)
        push = (message.appkey, message.msgid, record.partition, message.meta.time_ms)
        return [Row("push_values", (*push, *values, *_place(record)))]


def _device_command(record: Record, message: DeviceCommand) -> Row:
    asked = (message.meta.time_ms, command_name(message), command_detail(message), *_origin(message.meta))
    device = (message.appkey, record.partition, message.token)
    return Row("device_commands", (*device, *asked, _event_id(message.meta), *_place(record)))


def _app(record: Record, message: AppFact) -> list[Row]:
    match message.WhichOneof("fact"):
        case "changed":
            changed = message.changed
            done = (message.meta.time_ms, changed.action, ", ".join(changed.settings), *_origin(message.meta))
            return [Row("app_changes", (changed.appkey, *done, _event_id(message.meta), *_place(record)))]
        case "app" | "revocations" | None:
            return []
        case never:
            assert_never(never)


def _task(record: Record, message: TaskFact) -> list[Row]:
    def row(event: str, time_ms: int, due_ms: int = 0) -> Row:
        return Row("tasks", (message.task_key, event, time_ms, due_ms, *_origin(message.meta), *_place(record)))

    match message.WhichOneof("fact"):
        case "scheduled":
            scheduled = message.scheduled
            pushes = [
                Row("task_pushes", _push(push, scheduled.created_ms, message.meta, _place(record, index)))
                for index, push in enumerate(scheduled.pushes)
            ]
            return [row("scheduled", scheduled.created_ms, scheduled.due_ms), *pushes]
        case "sent":
            return [row("sent", message.meta.time_ms)]
        case "cancelled":
            return [row("cancelled", message.meta.time_ms)]
        case "fell_due":
            return [row("fell due", message.meta.time_ms)]
        case None:
            return []
        case never:
            assert_never(never)


def _push(push: SendPush, time_ms: int, meta: Meta, place: tuple[Any, ...]) -> tuple[Any, ...]:
    last_msgid = min(push.msgid + max(push.id_count, 1) - 1, _GREATEST_ID)
    kind = enum_name(Kind.DESCRIPTOR, push.kind, "KIND_")
    return (
        *(push.msgid, last_msgid, push.appkey, _platform(push.platform), kind, readable(push.audience)),
        *(_filter(push.audience), push.request_json, time_ms, push.period_s, push.qps, push.task_key),
        *(*_targets(push.audience.devices), *_origin(meta), *place),
    )


def _filter(audience: Audience) -> bytes:
    """The filter of an audience that has one."""
    return audience.filter.SerializeToString(deterministic=True) if audience.HasField("filter") else b""


def _targets(devices: Devices) -> tuple[npt.NDArray[Any], ...]:
    """Partitions, numbers and offsets; empty for a push that does not list its devices."""
    columns = (
        np.frombuffer(devices.partitions, "<u2"),
        np.frombuffer(devices.numbers, "<u4"),
        np.frombuffer(devices.id_offsets, "<u4"),
    )
    if len({len(column) for column in columns}) != 1:
        raise ValueError("the devices of a push are columns of different lengths")
    return columns


def _table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _turn(record: Record) -> tuple[int, str, int, int]:
    first = _FIRST.index(record.topic) if record.topic in _FIRST else len(_FIRST)
    return first, record.topic, record.partition, record.offset


def _origin(meta: Meta) -> tuple[str, str, str, str]:
    return meta.writer, meta.origin.door, meta.origin.address, meta.origin.request_id


def _event_id(meta: Meta) -> bytes:
    return meta.event_id[:16].ljust(16, b"\0")


def _platform(number: int) -> str:
    return enum_name(Platform.DESCRIPTOR, number, "PLATFORM_")


def _place(record: Record, index: int = 0) -> tuple[Any, ...]:
    return record.topic, record.partition, record.offset, index
