"""The part of a log record that becomes one row, and the columns that several tables have in common."""

from typing import Any, Generic, NamedTuple, TypeVar

from analytics.store.columns import ATTRIBUTES, ID, TEXT, UINT16, UINT32, UINT64, Column, enum_name
from protos.registry.v1.apps_pb2 import Platform
from protos.runtime.v1.log_pb2 import Meta, Origin
from services.log.port import Record

Part = TypeVar("Part")


class RowSource(NamedTuple, Generic[Part]):
    """`part` is the record's message or a part of it; `row_index` counts the rows of a table that one record makes."""

    record: Record
    meta: Meta
    part: Part
    row_index: int = 0


def _address(origin: Origin) -> str:
    """Return the proven address, and the name that the client claims where that differs."""
    return f"{origin.address} (says {origin.says})" if origin.says else origin.address


ORIGIN: tuple[Column[RowSource[Any]], ...] = (
    Column("writer", TEXT, lambda row: row.meta.writer),
    Column("interface", TEXT, lambda row: row.meta.origin.interface),
    Column("address", TEXT, lambda row: _address(row.meta.origin)),
    Column("request_id", TEXT, lambda row: row.meta.origin.request_id),
)
EVENT_ID: Column[RowSource[Any]] = Column("_event_id", ID, lambda row: row.meta.event_id[:16].ljust(16, b"\0"))
POSITION: tuple[Column[RowSource[Any]], ...] = (
    Column("_topic", TEXT, lambda row: row.record.topic),
    Column("_partition", UINT16, lambda row: row.record.partition),
    Column("_offset", UINT64, lambda row: row.record.offset),
    Column("_index", UINT32, lambda row: row.row_index),
)


def device_attribute(name: str) -> Column[RowSource[Any]]:
    """Return the column of one attribute of a row whose part is a `protos.registry.v1.Device`."""
    return Column(name, TEXT, lambda row: getattr(row.part.attributes, name))


DEVICE_ATTRIBUTES = tuple(device_attribute(name) for name in ATTRIBUTES)


def platform_name(number: int) -> str:
    return enum_name(Platform.DESCRIPTOR, number, "PLATFORM_")
