"""Tables of devices, of the commands to them, and of changes of apps."""

import pyarrow as pa

from analytics.audit.command_text import command_detail, command_name
from analytics.ingestion.tables.row_source import (
    DEVICE_ATTRIBUTES,
    EVENT_ID,
    ORIGIN,
    POSITION,
    RowSource,
    platform_name,
)
from analytics.store.columns import TEXT, TIME, UINT16, UINT32, Column, Table
from protos.registry.v1.apps_pb2 import AppChanged
from protos.registry.v1.devices_pb2 import Device, DeviceCommand

DEVICES_TABLE = Table[RowSource[Device]](
    "devices",
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("number", UINT32, lambda row: row.part.number),
    Column("token", TEXT, lambda row: row.part.token),
    Column("time", TIME, lambda row: row.meta.time_ms),
    Column("platform", TEXT, lambda row: platform_name(row.part.platform)),
    Column("registered", TIME, lambda row: row.part.registered_ms),
    Column("removed", TIME, lambda row: row.part.removed_ms),
    Column("removed_reason", TEXT, lambda row: row.part.removed_reason),
    Column("has_alias", pa.bool_(), lambda row: row.part.HasField("alias")),
    Column("alias", TEXT, lambda row: row.part.alias),
    Column("tags", pa.list_(pa.int32()), lambda row: list(row.part.tags)),
    Column("stags", pa.list_(TEXT), lambda row: list(row.part.stags)),
    Column("model", TEXT, lambda row: row.part.attributes.model),
    *DEVICE_ATTRIBUTES,
    EVENT_ID,
    *POSITION,
)
REGISTRATIONS_TABLE = Table[RowSource[Device]](
    "registrations",
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("registered", TIME, lambda row: row.part.registered_ms),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("number", UINT32, lambda row: row.part.number),
    *DEVICE_ATTRIBUTES,
    *POSITION,
)
DEVICE_COMMANDS_TABLE = Table[RowSource[DeviceCommand]](
    "device_commands",
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("token", TEXT, lambda row: row.part.token),
    Column("time", TIME, lambda row: row.meta.time_ms),
    Column("command", TEXT, lambda row: command_name(row.part)),
    Column("detail", TEXT, lambda row: command_detail(row.part)),
    *ORIGIN,
    EVENT_ID,
    *POSITION,
)
APP_CHANGES_TABLE = Table[RowSource[AppChanged]](
    "app_changes",
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("time", TIME, lambda row: row.meta.time_ms),
    Column("action", TEXT, lambda row: row.part.action),
    Column("detail", TEXT, lambda row: ", ".join(row.part.settings)),
    *ORIGIN,
    EVENT_ID,
    *POSITION,
)
