"""Tables of pushes and timed tasks, and of what happens to a push in each partition."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from analytics.audit.details_text import audience_text, stored_summary
from analytics.ingestion.tables.row_source import EVENT_ID, ORIGIN, POSITION, RowSource, platform_name
from analytics.store.columns import ATTRIBUTES, BYTES, TEXT, TIME, UINT16, UINT32, UINT64, Column, Table, enum_name
from protos.analytics.v1.details_pb2 import AudienceSummary
from protos.push.v1.push_pb2 import Audience, CancelPush, Devices, Kind, SendPush
from services.domain.push_summary import push_text, push_title

_GREATEST_ID = 2**64 - 1


class AcceptedPush(NamedTuple):
    """A push, when its request was accepted, and what its audience is made of."""

    send: SendPush
    time_ms: int
    summary: AudienceSummary


class TaskEvent(NamedTuple):
    """One event of a timed task; `due_ms` is 0 for events other than `scheduled`, and only `failed` has a reason."""

    task_key: str
    event: str
    time_ms: int
    due_ms: int = 0
    reason: str = ""


class PushPartitionEvent(NamedTuple):
    """One event of a push in a partition. Only `started` has an audience (serialised bitmap), size and expiry, and only
    `failed` has a reason."""

    msgid: int
    appkey: str
    event: str
    audience: bytes = b""
    size: int = 0
    expires_ms: int = 0
    reason: str = ""


class AudienceValues(NamedTuple):
    """A push's audience in one partition: for each attribute in order of ATTRIBUTES, (value, bitmap) pairs.

    `attributes_until`: see PushStarted.
    """

    msgid: int
    appkey: str
    values: list[list[tuple[str, bytes]]]
    attributes_until: int


def check_targets(devices: Devices) -> None:
    """Check that the columns of a device list have the same length. ValueError: they have not."""
    lengths = {len(devices.partitions) // 2, len(devices.numbers) // 4, len(devices.id_offsets) // 4}
    if len(lengths) != 1:
        raise ValueError("the devices of a push are columns of different lengths")


def _last_msgid(send: SendPush) -> int:
    return min(send.msgid + max(send.id_count, 1) - 1, _GREATEST_ID)


def _filter(audience: Audience) -> bytes:
    return audience.filter.SerializeToString(deterministic=True) if audience.HasField("filter") else b""


_PUSH: tuple[Column[RowSource[AcceptedPush]], ...] = (
    Column("msgid", UINT64, lambda row: row.part.send.msgid),
    Column("last_msgid", UINT64, lambda row: _last_msgid(row.part.send)),
    Column("appkey", TEXT, lambda row: row.part.send.appkey),
    Column("platform", TEXT, lambda row: platform_name(row.part.send.platform)),
    Column("kind", TEXT, lambda row: enum_name(Kind.DESCRIPTOR, row.part.send.kind, "KIND_")),
    Column("title", TEXT, lambda row: push_title(row.part.send.message)),
    Column("text", TEXT, lambda row: push_text(row.part.send.message)),
    Column("audience", TEXT, lambda row: audience_text(row.part.summary)),
    Column("audience_summary", BYTES, lambda row: stored_summary(row.part.summary)),
    Column("filter", BYTES, lambda row: _filter(row.part.send.audience)),
    Column("request_json", TEXT, lambda row: row.part.send.request_json),
    Column("time", TIME, lambda row: row.part.time_ms),
    Column("period_s", UINT32, lambda row: row.part.send.period_s),
    Column("qps", UINT32, lambda row: row.part.send.qps),
    Column("task_key", TEXT, lambda row: row.part.send.task_key),
    Column(
        "target_partitions",
        pa.list_(UINT16),
        lambda row: np.frombuffer(row.part.send.audience.devices.partitions, "<u2"),
    ),
    Column(
        "target_numbers", pa.list_(UINT32), lambda row: np.frombuffer(row.part.send.audience.devices.numbers, "<u4")
    ),
    Column(
        "target_offsets", pa.list_(UINT32), lambda row: np.frombuffer(row.part.send.audience.devices.id_offsets, "<u4")
    ),
    *ORIGIN,
    *POSITION,
)
PUSHES_TABLE = Table[RowSource[AcceptedPush]]("pushes", *_PUSH)
TASK_PUSHES_TABLE = Table[RowSource[AcceptedPush]]("task_pushes", *_PUSH)
PUSH_CANCELS_TABLE = Table[RowSource[CancelPush]](
    "push_cancels",
    Column("msgid", UINT64, lambda row: row.part.msgid),
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("time", TIME, lambda row: row.meta.time_ms),
    *ORIGIN,
    EVENT_ID,
    *POSITION,
)
TASKS_TABLE = Table[RowSource[TaskEvent]](
    "tasks",
    Column("task_key", TEXT, lambda row: row.part.task_key),
    Column("event", TEXT, lambda row: row.part.event),
    Column("time", TIME, lambda row: row.part.time_ms),
    Column("due", TIME, lambda row: row.part.due_ms),
    Column("reason", TEXT, lambda row: row.part.reason),
    *ORIGIN,
    *POSITION,
)
PUSH_PARTITIONS_TABLE = Table[RowSource[PushPartitionEvent]](
    "push_partitions",
    Column("msgid", UINT64, lambda row: row.part.msgid),
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("event", TEXT, lambda row: row.part.event),
    Column("time", TIME, lambda row: row.meta.time_ms),
    Column("audience", BYTES, lambda row: row.part.audience),
    Column("count", UINT32, lambda row: row.part.size),
    Column("expires", TIME, lambda row: row.part.expires_ms),
    Column("reason", TEXT, lambda row: row.part.reason),
    *POSITION,
)


def _values(index: int) -> Column[RowSource[AudienceValues]]:
    return Column(ATTRIBUTES[index], pa.map_(TEXT, BYTES), lambda row: row.part.values[index])


PUSH_VALUES_TABLE = Table[RowSource[AudienceValues]](
    "push_values",
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("msgid", UINT64, lambda row: row.part.msgid),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("time", TIME, lambda row: row.meta.time_ms),
    *(_values(index) for index in range(len(ATTRIBUTES))),
    Column("attributes_until", UINT64, lambda row: row.part.attributes_until),
    *POSITION,
)
