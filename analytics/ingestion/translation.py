"""Translates records of the log into rows of the analytics store."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from analytics.audit.details import requested_details
from analytics.ingestion.attributes import AttributeHistory
from analytics.ingestion.audience_values import bitmaps_by_value
from analytics.ingestion.connections.deltas import ConnectionDeltas
from analytics.ingestion.connections.spans import LatestConnections
from analytics.ingestion.device_references import unknown_device_partitions
from analytics.ingestion.known_ids import BroadcastIds, KnownDevices
from analytics.ingestion.outcomes import OutcomeBatch
from analytics.ingestion.tables.actions import action_rows
from analytics.ingestion.tables.devices import (
    APP_CHANGES_TABLE,
    ATTRIBUTE_CHANGES_TABLE,
    CONNECTION_COUNTS_TABLE,
    DEVICE_COMMANDS_TABLE,
    DEVICES_TABLE,
    REGISTRATIONS_TABLE,
    SESSIONS_TABLE,
    ChangedAttributes,
    ConnectionCount,
    Registration,
    RequestedCommand,
    SessionRow,
)
from analytics.ingestion.tables.pushes import (
    PUSH_CANCELS_TABLE,
    PUSH_PARTITIONS_TABLE,
    PUSH_VALUES_TABLE,
    PUSHES_TABLE,
    TASK_PUSHES_TABLE,
    TASKS_TABLE,
    AcceptedPush,
    AudienceValues,
    PushPartitionEvent,
    TaskEvent,
    check_targets,
)
from analytics.ingestion.tables.refusals import refusal_rows
from analytics.ingestion.tables.row_source import RowSource
from analytics.store.columns import Row
from protos.accounts.v1.accounts_pb2 import AccountFact, LogInFact
from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.gateway.v1.sessions_pb2 import SessionEvent, SessionFact
from protos.push.v1.push_pb2 import Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import AppFact
from protos.registry.v1.devices_pb2 import DeviceCommand, DeviceFact
from protos.registry.v1.erasures_pb2 import ErasureFact
from protos.runtime.v1.refusals_pb2 import RefusalFact
from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.domain.apps import has_epoch
from services.domain.push_summary import audience_summary
from services.domain.topics import (
    ACCOUNTS,
    APPS,
    DELIVERIES,
    DEVICE_COMMANDS,
    DEVICES,
    DRAFTS,
    ERASURES,
    LOG_INS,
    PUSH_COMMANDS,
    PUSHES,
    REFUSALS,
    SESSIONS,
    TASKS,
    decode,
)
from services.log.port import Record
from services.replica.dead_letters import UNUSABLE
from services.replica.epochs import Epochs

ACTIONS = (PUSH_COMMANDS, TASKS, DEVICE_COMMANDS, APPS, ACCOUNTS, LOG_INS, DRAFTS, ERASURES)
"""The topics whose records say what accounts and operators did."""

SOURCES = (DEVICES, SESSIONS, PUSHES, DELIVERIES, *ACTIONS, REFUSALS)
"""The topics that analytics reads."""

_FIRST = (DEVICES.name, PUSH_COMMANDS.name, SESSIONS.name)


class TranslationContext(NamedTuple):
    """State that earlier records have built and later records are stored with; in memory, across batches."""

    history: AttributeHistory
    broadcasts: BroadcastIds
    devices: KnownDevices
    connections: LatestConnections
    epochs: Epochs

    def mark_values(self, attribute: int, is_used: npt.NDArray[np.bool_]) -> None:
        """Mark codes in use outside CountedAttributes; `attribute` is an index in ATTRIBUTES."""
        self.connections.mark_values(attribute, is_used)
        self.history.mark_values(attribute, is_used)


class RecordTranslator:
    """Translates one batch after another, and updates the context with each."""

    def __init__(self, context: TranslationContext, ingester: str, *, stores_commands: bool = True) -> None:
        """`ingester` is stored with sums; only one instance of a store `stores_commands`, that is push commands."""
        self._history, self._broadcasts, self._devices, self._connections, self._epochs = context
        self._attributes = self._history.attributes
        self._ingester = ingester
        self._stores_commands = stores_commands

    def unknown_device_partitions(self, records: Sequence[Record]) -> set[int]:
        """Return the partitions with references to devices that neither the store nor these records register."""
        return unknown_device_partitions(records, self._devices)

    def tables(
        self, records: Sequence[Record], dead_letter: Callable[[Record, Exception], None]
    ) -> dict[str, pa.Table]:
        """Return the rows of each table that gets some. The same records give the same rows in the same order.

        Devices and push commands are translated first, then sessions: starts count under attributes from there.
        """
        rows: dict[str, list[Row]] = {}
        outcomes = OutcomeBatch(self._attributes, self._broadcasts)
        deltas = ConnectionDeltas(self._attributes, self._connections, self._ingester)
        for record in sorted(records, key=_translation_order):
            try:
                for row in self._rows(record, outcomes, deltas):
                    rows.setdefault(row.table.name, []).append(row)
            except UNUSABLE as error:
                dead_letter(record, error)
        tables = {name: of_table[0].table.from_rows(of_table) for name, of_table in rows.items()}
        return {**tables, **outcomes.tables(), **deltas.tables()}

    def outcomes_of(self, appkey: str) -> OutcomeBatch:
        """Return an empty batch for outcomes of one app, which are stored with what is known by now."""
        return OutcomeBatch(self._attributes, self._broadcasts, appkey)

    def _rows(self, record: Record, outcomes: OutcomeBatch, deltas: ConnectionDeltas) -> Sequence[Row]:
        message = decode(record)
        is_fenced = not isinstance(message, AppFact) or has_epoch(message)
        if is_fenced and not self._epochs.admits(record, message):
            return []
        match message:
            case DeviceFact():
                return self._device_rows(record, message)
            case PushCommand():
                rows = self._push_command_rows(record, message) + action_rows(record, message)
                return rows if self._stores_commands else []
            case TaskFact():
                return _task_rows(record, message) + action_rows(record, message)
            case DeviceCommand():
                requested = RequestedCommand(message, requested_details(message))
                row = DEVICE_COMMANDS_TABLE.row(RowSource(record, message.meta, requested))
                return [row, *action_rows(record, message)]
            case AppFact():
                return _app_rows(record, message) + action_rows(record, message)
            case AccountFact() | LogInFact() | DraftFact() | ErasureFact():
                return action_rows(record, message)
            case RefusalFact():
                return refusal_rows(record, message)
            case SessionFact():
                return self._session_rows(record, message, deltas)
            case PushFact():
                return self._push_partition_rows(record, message)
            case DeliveryFact():
                outcomes.add(record, message)
                return []
            case _:
                raise ValueError(f"analytics does not read the topic {record.topic}")

    def _device_rows(self, record: Record, message: DeviceFact) -> list[Row]:
        match message.WhichOneof("fact"):
            case "device":
                row = DEVICES_TABLE.row(RowSource(record, message.meta, message.device))
                return [row, *self._registration_rows(record, message)]
            case "revocations" | None:
                return []
            case never:
                assert_never(never)

    def _registration_rows(self, record: Record, message: DeviceFact) -> list[Row]:
        """Return the registrations of the device's numbers that were not known, and store their attributes."""
        device = message.device
        rows: list[Row] = []
        registrations = [
            Registration(device.appkey, device.token, kept.number, kept.registered_ms, kept.attributes, is_kept=True)
            for kept in device.registrations
        ]
        if not device.attributes_revision:
            self._history.registered(device.appkey, record.partition, device.number, device.attributes)
        if all(kept.number != device.number for kept in device.registrations):
            present = device.number, device.registered_ms, device.attributes
            registrations.append(Registration(device.appkey, device.token, *present, is_kept=False))
        for registration in registrations:
            appkey, _, number, _, attributes, is_kept = registration
            if self._devices.add(appkey, record.partition, number):
                if is_kept and (number != device.number or device.attributes_revision):
                    self._history.registered(appkey, record.partition, number, attributes)
                source = RowSource(record, message.meta, registration, len(rows))
                rows.append(REGISTRATIONS_TABLE.row(source))
        return rows

    def _change_rows(self, record: Record, message: SessionFact, deltas: ConnectionDeltas) -> list[Row]:
        """Apply a change of attributes; return its row, or none if its revision is not above the latest."""
        change = message.attributes_changed
        if not self._history.is_new(record.partition, change):
            return []
        former = self._history.change(record.partition, record.offset, change)
        deltas.attributes_changed(
            record.partition, change, self._attributes.codes_of(change.appkey, record.partition, change.number)
        )
        changed = ChangedAttributes(change, self._attributes.strings(former.codes))
        return [ATTRIBUTE_CHANGES_TABLE.row(RowSource(record, message.meta, changed))]

    def _session_rows(self, record: Record, message: SessionFact, deltas: ConnectionDeltas) -> list[Row]:
        match message.WhichOneof("fact"):
            case "batch":
                return [
                    SESSIONS_TABLE.row(
                        RowSource(record, message.meta, self._device_session(record, event, deltas), index)
                    )
                    for index, event in enumerate(message.batch.events)
                ]
            case "counts":
                counts = message.counts
                return [
                    CONNECTION_COUNTS_TABLE.row(
                        RowSource(
                            record,
                            message.meta,
                            ConnectionCount(appkey, counts.minute_ms, counts.gateway, count),
                            index,
                        )
                    )
                    for index, (appkey, count) in enumerate(sorted(counts.connections_by_app.items()))
                ]
            case "attributes_changed":
                return self._change_rows(record, message, deltas)
            case None:
                return []
            case never:
                assert_never(never)

    def _device_session(self, record: Record, event: SessionEvent, deltas: ConnectionDeltas) -> SessionRow:
        gateway = record.key.decode(errors="replace") if event.connection else ""
        codes = self._attributes.codes_of(event.appkey, record.partition, event.number)
        deltas.add(record.partition, gateway, event, codes)
        return SessionRow(event, gateway, self._attributes.strings(codes))

    def _push_command_rows(self, record: Record, message: PushCommand) -> list[Row]:
        match message.WhichOneof("command"):
            case "send":
                send, time_ms = message.send, message.meta.time_ms
                self._broadcasts.note(send.msgid, is_broadcast=send.kind != Kind.KIND_UNICAST, time_ms=time_ms)
                return [PUSHES_TABLE.row(RowSource(record, message.meta, _accepted(send, time_ms)))]
            case "cancel":
                return [PUSH_CANCELS_TABLE.row(RowSource(record, message.meta, message.cancel))]
            case None:
                return []
            case never:
                assert_never(never)

    def _push_partition_rows(self, record: Record, message: PushFact) -> list[Row]:
        def row(event: str, audience: bytes = b"", size: int = 0, expires_ms: int = 0, reason: str = "") -> Row:
            part = PushPartitionEvent(message.msgid, message.appkey, event, audience, size, expires_ms, reason)
            return PUSH_PARTITIONS_TABLE.row(RowSource(record, message.meta, part))

        match message.WhichOneof("fact"):
            case "started":
                started = message.started
                values = self._audience_value_rows(record, message, BitMap.deserialize(started.audience))
                return [row("started", started.audience, started.count, started.expires_ms), *values]
            case "cancelled":
                return [row("cancelled")]
            case "finished":
                return [row("finished")]
            case "failed":
                return [row("failed", reason=message.failed.reason)]
            case None:
                return []
            case never:
                assert_never(never)

    def _audience_value_rows(self, record: Record, message: PushFact, audience: BitMap) -> list[Row]:
        if not audience:
            return []
        until = message.started.attributes_until
        values = bitmaps_by_value(self._history, message.appkey, record.partition, audience, until)
        part = AudienceValues(message.msgid, message.appkey, values, until)
        return [PUSH_VALUES_TABLE.row(RowSource(record, message.meta, part))]


def _app_rows(record: Record, message: AppFact) -> list[Row]:
    match message.WhichOneof("fact"):
        case "changed" if not message.changed.team_id:
            return [APP_CHANGES_TABLE.row(RowSource(record, message.meta, message.changed))]
        case (
            "changed"
            | "app"
            | "revocations"
            | "installation_pause"
            | "broadcasts"
            | "key_fingerprint"
            | "sealing"
            | "team_webhooks"
            | "quota_reached"
            | "saved_audience"
            | None
        ):
            return []
        case never:
            assert_never(never)


def _task_rows(record: Record, message: TaskFact) -> list[Row]:
    def row(event: str, time_ms: int, due_ms: int = 0, reason: str = "") -> Row:
        task_event = TaskEvent(message.task_key, event, time_ms, due_ms, reason)
        return TASKS_TABLE.row(RowSource(record, message.meta, task_event))

    match message.WhichOneof("fact"):
        case "scheduled":
            scheduled = message.scheduled
            pushes = [
                TASK_PUSHES_TABLE.row(RowSource(record, message.meta, _accepted(send, scheduled.created_ms), index))
                for index, send in enumerate(scheduled.pushes)
            ]
            return [row("scheduled", scheduled.created_ms, scheduled.due_ms), *pushes]
        case "sent":
            return [row("sent", message.meta.time_ms)]
        case "cancelled":
            return [row("cancelled", message.meta.time_ms)]
        case "fell_due":
            return [row("fell due", message.meta.time_ms)]
        case "paused":
            return [row("paused", message.meta.time_ms)]
        case "expired":
            return [row("expired", message.meta.time_ms)]
        case "failed":
            return [row("failed", message.meta.time_ms, reason=message.failed.reason)]
        case None:
            return []
        case never:
            assert_never(never)


def _accepted(send: SendPush, time_ms: int) -> AcceptedPush:
    check_targets(send.audience.devices)
    return AcceptedPush(send, time_ms, audience_summary(send.audience))


def _translation_order(record: Record) -> tuple[int, str, int, int]:
    rank = _FIRST.index(record.topic) if record.topic in _FIRST else len(_FIRST)
    return rank, record.topic, record.partition, record.offset
