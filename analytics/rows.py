"""Records of the log as columns of the analytics store."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from analytics.attributes import ATTRIBUTES, DeviceAttributes, Vocabulary
from analytics.expression import readable
from analytics.names import enum_name
from analytics.tables import TABLES, TIME
from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, PushFact
from protos.gateway.v1.sessions_pb2 import SessionEventKind, SessionFact
from protos.push.v1.push_pb2 import Kind, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import TaskFact
from services.runtime.follower import decode
from services.runtime.log import Record
from services.runtime.topics import DELIVERIES, DEVICES, PUSH_COMMANDS, PUSHES, SESSIONS, TASKS

SOURCES = (DEVICES, PUSH_COMMANDS, TASKS, SESSIONS, PUSHES, DELIVERIES)
"""The topics that are read."""

_KINDS = pa.array([enum_name(OutcomeKind.DESCRIPTOR, number, "OUTCOME_KIND_") for number in range(256)], pa.string())
_GREATEST_ID = 2**64 - 1
_TOPIC = pa.array([DELIVERIES.name], pa.string())


class Row(NamedTuple):
    """One row of a table, its columns in the order of TABLES."""

    table: str
    values: tuple[Any, ...]


class Outcomes(NamedTuple):
    """Outcomes of one app and one record: columns of equal length, and what all of them share."""

    appkey: str
    partition: int
    offset: int
    msgids: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.uint8]
    times_ms: npt.NDArray[np.int64]
    reasons: npt.NDArray[np.uint32]
    attributes: npt.NDArray[Any]
    indexes: npt.NDArray[np.uint32]


class Translation:
    """Records of one batch after another into tables; the attributes outlive a batch."""

    def __init__(self, attributes: DeviceAttributes) -> None:
        self._attributes = attributes
        self._reasons = Vocabulary()

    def tables(self, records: Sequence[Record], park: Callable[[Record, Exception], None]) -> dict[str, pa.Table]:
        """The rows of each table that gets some. The same records give the same rows in the same order.

        Devices come first, so that what happens in the same batch is stored with their new attributes.
        """
        self._reasons = Vocabulary()
        rows: dict[str, list[tuple[Any, ...]]] = {}
        outcomes: list[Outcomes] = []
        for record in sorted(records, key=lambda r: (r.topic != DEVICES.name, r.topic, r.partition, r.offset)):
            try:
                for item in self._translate(record):
                    if isinstance(item, Outcomes):
                        outcomes.append(item)
                    else:
                        rows.setdefault(item.table, []).append(item.values)
            except (DecodeError, ValueError, IndexError) as error:
                park(record, error)
        tables = {table: _table(TABLES[table], of_table) for table, of_table in rows.items()}
        if outcomes:
            tables["deliveries"] = self._deliveries(outcomes)
        return tables

    def _translate(self, record: Record) -> Sequence[Row | Outcomes]:
        message = decode(record)
        match message:
            case DeviceFact():
                return self._device(record, message)
            case PushCommand():
                return _command(record, message)
            case TaskFact():
                return _task(record, message)
            case SessionFact():
                return self._sessions(record, message)
            case PushFact():
                return _push_partition(record, message)
            case DeliveryFact():
                return self._outcomes(record, message)
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
                return [Row("devices", values)]
            case None:
                return []
            case never:
                assert_never(never)

    def _sessions(self, record: Record, message: SessionFact) -> list[Row]:
        match message.WhichOneof("fact"):
            case "batch":
                return [
                    Row(
                        "sessions",
                        (
                            *(event.appkey, record.partition, event.number, event.token),
                            enum_name(SessionEventKind.DESCRIPTOR, event.kind, "SESSION_EVENT_KIND_"),
                            *(event.time_ms, event.connection, event.reason),
                            *self._attributes.strings(event.appkey, record.partition, event.number),
                            *_place(record, index),
                        ),
                    )
                    for index, event in enumerate(message.batch.events)
                ]
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

    def _outcomes(self, record: Record, message: DeliveryFact) -> list[Outcomes]:
        match message.WhichOneof("fact"):
            case "outcomes":
                start = 0
                chunks = []
                for app in message.outcomes.apps:
                    chunks.append(self._app_outcomes(record, app, start))
                    start += len(chunks[-1].msgids)
                return chunks
            case None:
                return []
            case never:
                assert_never(never)

    def _app_outcomes(self, record: Record, app: AppOutcomes, start: int) -> Outcomes:
        """ValueError or IndexError: the columns do not fit each other."""
        msgids = np.frombuffer(app.msgids, "<u8")
        numbers = np.frombuffer(app.numbers, "<u4")
        kinds = np.frombuffer(app.kinds, "u1")
        times_ms = np.frombuffer(app.times_ms, "<i8")
        indexes = np.frombuffer(app.reason_indexes, "u1")
        if len({len(column) for column in (msgids, numbers, kinds, times_ms, indexes)}) != 1:
            raise ValueError("outcomes have columns of different lengths")
        reasons = np.array([0, *(self._reasons.code(reason) for reason in app.reasons)], np.uint32)[indexes]
        attributes = self._attributes.codes(app.appkey, record.partition, numbers)
        order = np.arange(start, start + len(msgids), dtype=np.uint32)
        return Outcomes(
            *(app.appkey, record.partition, record.offset, msgids, numbers, kinds, times_ms, reasons),
            *(attributes, order),
        )

    def _deliveries(self, chunks: Sequence[Outcomes]) -> pa.Table:
        sizes = np.array([len(chunk.msgids) for chunk in chunks])
        apps = Vocabulary()
        appkeys = np.repeat(np.array([apps.code(chunk.appkey) for chunk in chunks], np.uint32), sizes)
        partitions = np.repeat(np.array([chunk.partition for chunk in chunks], np.uint16), sizes)
        attributes = np.concatenate([chunk.attributes for chunk in chunks], axis=1)
        columns = [
            _coded(appkeys, apps.strings()),
            pa.array(np.concatenate([chunk.msgids for chunk in chunks])),
            pa.array(partitions),
            pa.array(np.concatenate([chunk.numbers for chunk in chunks])),
            _coded(np.concatenate([chunk.kinds for chunk in chunks]), _KINDS),
            pa.array(np.concatenate([chunk.times_ms for chunk in chunks])).cast(TIME),
            _coded(np.concatenate([chunk.reasons for chunk in chunks]), self._reasons.strings()),
            *(
                _coded(codes, vocabulary.strings())
                for codes, vocabulary in zip(attributes, self._attributes.vocabularies, strict=True)
            ),
            _coded(np.zeros(len(partitions), np.uint8), _TOPIC),
            pa.array(partitions),
            pa.array(np.repeat(np.array([chunk.offset for chunk in chunks], np.uint64), sizes)),
            pa.array(np.concatenate([chunk.indexes for chunk in chunks])),
        ]
        return pa.Table.from_arrays(columns, schema=TABLES["deliveries"])


def _command(record: Record, message: PushCommand) -> list[Row]:
    match message.WhichOneof("command"):
        case "send":
            return [Row("pushes", _push(message.send, message.meta.time_ms, message.meta, _place(record)))]
        case "cancel":
            cancel = message.cancel
            origin = (*_origin(message.meta), _event_id(message.meta))
            return [Row("push_cancels", (cancel.msgid, cancel.appkey, message.meta.time_ms, *origin, *_place(record)))]
        case None:
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


def _push_partition(record: Record, message: PushFact) -> list[Row]:
    def row(event: str, audience: bytes = b"", count: int = 0, expires_ms: int = 0) -> Row:
        push = (message.msgid, message.appkey, record.partition, event, message.meta.time_ms)
        return Row("push_partitions", (*push, audience, count, expires_ms, *_place(record)))

    match message.WhichOneof("fact"):
        case "started":
            started = message.started
            return [row("started", started.audience, started.count, started.expires_ms)]
        case "cancelled":
            return [row("cancelled")]
        case "finished":
            return [row("finished")]
        case None:
            return []
        case never:
            assert_never(never)


def _push(push: SendPush, time_ms: int, meta: Meta, place: tuple[Any, ...]) -> tuple[Any, ...]:
    last_msgid = min(push.msgid + max(push.id_count, 1) - 1, _GREATEST_ID)
    kind = enum_name(Kind.DESCRIPTOR, push.kind, "KIND_")
    return (
        *(push.msgid, last_msgid, push.appkey, _platform(push.platform), kind, readable(push.audience)),
        *(push.request_json, time_ms, push.period_s, push.qps, push.task_key, *_origin(meta), *place),
    )


def _table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _coded(codes: npt.NDArray[Any], strings: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), strings)


def _origin(meta: Meta) -> tuple[str, str, str, str]:
    return meta.writer, meta.origin.door, meta.origin.address, meta.origin.request_id


def _event_id(meta: Meta) -> bytes:
    return meta.event_id[:16].ljust(16, b"\0")


def _platform(number: int) -> str:
    return enum_name(Platform.DESCRIPTOR, number, "PLATFORM_")


def _place(record: Record, index: int = 0) -> tuple[Any, ...]:
    return record.topic, record.partition, record.offset, index
