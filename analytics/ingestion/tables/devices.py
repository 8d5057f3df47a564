"""Tables of devices and their sessions, of the commands to them, and of changes of apps."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from analytics.audit.details import command_name, stored_details
from analytics.audit.details_text import details_text
from analytics.ingestion.tables.row_source import (
    DEVICE_ATTRIBUTES,
    EVENT_ID,
    ORIGIN,
    POSITION,
    RowSource,
    platform_name,
)
from analytics.store.columns import ATTRIBUTES, BYTES, TEXT, TIME, UINT16, UINT32, UINT64, Column, Table, enum_name
from protos.analytics.v1.details_pb2 import Detail
from protos.gateway.v1.sessions_pb2 import AttributeChange, SessionEvent, SessionEventKind
from protos.registry.v1.apps_pb2 import AppChanged
from protos.registry.v1.devices_pb2 import Address, Attributes, Device, DeviceCommand
from services.domain.addresses import address_hash, channel_name, fingerprint


class Registration(NamedTuple):
    """The first registration of a device number; `is_kept`: from the list that the device's record keeps."""

    appkey: str
    token: str
    number: int
    registered_ms: int
    attributes: Attributes
    is_kept: bool


class ChangedAttributes(NamedTuple):
    """A change of a device's attributes. `former`: the values before the change, in the order of ATTRIBUTES."""

    change: AttributeChange
    former: list[str]


def _changed_attribute(name: str) -> Column[RowSource[ChangedAttributes]]:
    return Column(name, TEXT, lambda row: getattr(row.part.change.attributes, name))


def _address(address: Address) -> str:
    """Return the channel and the fingerprint of an address, which itself is not stored."""
    hash_ = address_hash(address.channel, address.address)
    return f"{channel_name(address.channel)} {fingerprint(hash_)}"


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
    Column("addresses", pa.list_(TEXT), lambda row: [_address(address) for address in row.part.addresses]),
    Column("model", TEXT, lambda row: row.part.attributes.model),
    *DEVICE_ATTRIBUTES,
    Column("attributes_revision", UINT64, lambda row: row.part.attributes_revision),
    EVENT_ID,
    *POSITION,
)
REGISTRATIONS_TABLE = Table[RowSource[Registration]](
    "registrations",
    Column("appkey", TEXT, lambda row: row.part.appkey),
    Column("registered", TIME, lambda row: row.part.registered_ms),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("number", UINT32, lambda row: row.part.number),
    *DEVICE_ATTRIBUTES,
    Column("token", TEXT, lambda row: row.part.token),
    Column("kept", pa.bool_(), lambda row: row.part.is_kept),
    *POSITION,
)
ATTRIBUTE_CHANGES_TABLE = Table[RowSource[ChangedAttributes]](
    "attribute_changes",
    Column("appkey", TEXT, lambda row: row.part.change.appkey),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("number", UINT32, lambda row: row.part.change.number),
    Column("revision", UINT64, lambda row: row.part.change.revision),
    Column("time", TIME, lambda row: row.part.change.time_ms),
    *(_changed_attribute(name) for name in ATTRIBUTES),
    Column("former", pa.list_(TEXT), lambda row: row.part.former),
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


# Tables of session events and of the connection counts of gateways.


class SessionRow(NamedTuple):
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


def _attribute(index: int) -> Column[RowSource[SessionRow]]:
    return Column(ATTRIBUTES[index], TEXT, lambda row: row.part.attributes[index])


SESSIONS_TABLE = Table[RowSource[SessionRow]](
    "sessions",
    Column("appkey", TEXT, lambda row: row.part.event.appkey),
    Column("partition", UINT16, lambda row: row.record.partition),
    Column("number", UINT32, lambda row: row.part.event.number),
    Column(
        "kind", TEXT, lambda row: enum_name(SessionEventKind.DESCRIPTOR, row.part.event.kind, "SESSION_EVENT_KIND_")
    ),
    Column("time", TIME, lambda row: row.part.event.time_ms),
    Column("connection", UINT64, lambda row: row.part.event.connection),
    Column("reason", TEXT, lambda row: row.part.event.reason),
    Column("gateway", TEXT, lambda row: row.part.gateway),
    *(_attribute(index) for index in range(len(ATTRIBUTES))),
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
