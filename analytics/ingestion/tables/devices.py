"""Tables of devices, of the commands to them, and of changes of apps."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from analytics.audit.details.device_command import command_name
from analytics.audit.details.parts import stored_details
from analytics.audit.details.text import details_text
from analytics.ingestion.tables.row_source import (
    DEVICE_ATTRIBUTES,
    EVENT_ID,
    ORIGIN,
    POSITION,
    RowSource,
    platform_name,
)
from analytics.store.columns import BYTES, TEXT, TIME, UINT16, UINT32, Column, Table
from protos.analytics.v1.details_pb2 import Detail
from protos.registry.v1.apps_pb2 import AppChanged
from protos.registry.v1.devices_pb2 import Device, DeviceCommand


class RequestedCommand(NamedTuple):
    """A command to a device, and the parts of the line that says what it asks for."""

    command: DeviceCommand
    details: Sequence[Detail]


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
DEVICE_COMMANDS_TABLE = Table[RowSource[RequestedCommand]](
    "device_commands",
    Column("appkey", TEXT, lambda row: row.part.command.appkey),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("token", TEXT, lambda row: row.part.command.token),
    Column("time", TIME, lambda row: row.meta.time_ms),
    Column("command", TEXT, lambda row: command_name(row.part.command)),
    Column("detail", TEXT, lambda row: details_text(row.part.details)),
    Column("details", BYTES, lambda row: stored_details(row.part.details)),
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
