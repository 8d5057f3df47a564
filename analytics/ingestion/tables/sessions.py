"""Tables of session events and of the connection counts of gateways."""

from typing import NamedTuple

import pyarrow as pa

from analytics.ingestion.tables.row_source import POSITION, RowSource
from analytics.store.columns import ATTRIBUTES, TEXT, TIME, UINT16, UINT32, UINT64, Column, Table
from analytics.store.enum_names import enum_name
from protos.gateway.v1.sessions_pb2 import SessionEvent, SessionEventKind


class DeviceSession(NamedTuple):
    """A session event, its gateway ("" for reports over HTTP), and the device's attributes in order of ATTRIBUTES."""

    event: SessionEvent
    gateway: str
    attributes: list[str]


class ConnectionCount(NamedTuple):
    """How many devices of an app are connected to a gateway at a full minute."""

    appkey: str
    minute_ms: int
    gateway: str
    connections: int


def _attribute(index: int) -> Column[RowSource[DeviceSession]]:
    return Column(ATTRIBUTES[index], TEXT, lambda row: row.part.attributes[index])


SESSIONS_TABLE = Table[RowSource[DeviceSession]](
    "sessions",
    Column("appkey", TEXT, lambda row: row.part.event.appkey),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("number", UINT32, lambda row: row.part.event.number),
    Column("token", TEXT, lambda row: row.part.event.token),
    Column(
        "kind", TEXT, lambda row: enum_name(SessionEventKind.DESCRIPTOR, row.part.event.kind, "SESSION_EVENT_KIND_")
    ),
    Column("time", TIME, lambda row: row.part.event.time_ms),
    Column("connection", UINT64, lambda row: row.part.event.connection),
    Column("reason", TEXT, lambda row: row.part.event.reason),
    Column("gateway", TEXT, lambda row: row.part.gateway),
    *(_attribute(index) for index in range(len(ATTRIBUTES))),
    Column("from_log", pa.bool_(), lambda row: True),
    *POSITION,
)
CONNECTION_COUNTS_TABLE = Table[RowSource[ConnectionCount]](
    "connection_counts",
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("minute", TIME, lambda row: row.part.minute_ms),
    Column("gateway", TEXT, lambda row: row.part.gateway),
    Column("connections", UINT32, lambda row: row.part.connections),
    *POSITION,
)
