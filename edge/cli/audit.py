"""`carillon audit`: what happened to a push or a device, from the event log."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edge.cli.reach import reach
from protos.analytics.v1.analytics_pb2 import (
    AuditDeviceRequest,
    AuditDeviceResponse,
    AuditPushRequest,
    AuditPushResponse,
    StateCount,
    TimelineEntry,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.runtime.config import Settings, environment, load
from services.runtime.rpc import Channel

_TIMEOUT_S = 30.0
_WIDE = 400
"""Columns when the output is no terminal: nothing is folded then."""


@click.group()
def audit() -> None:
    """Explain a push or a device from the event log."""


@audit.command()
@click.argument("msgid", type=click.IntRange(min=1))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def push(msgid: int, as_json: bool) -> None:
    """What happened to the push with this message id, and in which state its devices are.

    Each device of the audience is in one state. With another id of a list than its first, the states are those of that
    message.
    """

    async def call(channel: Channel) -> AuditPushResponse:
        return await AnalyticsServiceStub(channel).AuditPush(AuditPushRequest(msgid=msgid), timeout=_TIMEOUT_S)

    answer = reach("analytics", call)
    if as_json:
        click.echo(json.dumps(push_object(answer), ensure_ascii=False))
        return
    facts = [
        ("push", str(answer.msgid)),
        ("app", answer.appkey),
        ("kind", answer.kind),
        ("audience", f"{answer.audience} ({answer.audience_count} {_devices(answer.audience_count)})"),
        ("request", answer.request_json),
    ]
    _show(facts, timeline_table(answer.timeline, _zone()), states_table(answer.states))


@audit.command()
@click.argument("appkey")
@click.argument("token")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def device(appkey: str, token: str, as_json: bool) -> None:
    """What happened to a device: its registrations, changes, sessions and messages."""

    async def call(channel: Channel) -> AuditDeviceResponse:
        request = AuditDeviceRequest(appkey=appkey, token=token)
        return await AnalyticsServiceStub(channel).AuditDevice(request, timeout=_TIMEOUT_S)

    answer = reach("analytics", call)
    if as_json:
        click.echo(json.dumps(device_object(answer), ensure_ascii=False))
        return
    _show([("device", answer.token), ("app", answer.appkey)], timeline_table(answer.timeline, _zone()))


def push_object(answer: AuditPushResponse) -> dict[str, Any]:
    """The answer for programs; times are milliseconds since 1970 UTC."""
    return {
        "msgid": answer.msgid,
        "appkey": answer.appkey,
        "kind": answer.kind,
        "audience": answer.audience,
        "audience_count": answer.audience_count,
        "request_json": answer.request_json,
        "timeline": [_entry_object(entry) for entry in answer.timeline],
        "states": [{"state": count.state, "reason": count.reason, "devices": count.devices} for count in answer.states],
    }


def device_object(answer: AuditDeviceResponse) -> dict[str, Any]:
    """The answer for programs; times are milliseconds since 1970 UTC."""
    timeline = [_entry_object(entry) for entry in answer.timeline]
    return {"appkey": answer.appkey, "token": answer.token, "timeline": timeline}


def timeline_table(timeline: Sequence[TimelineEntry], zone: ZoneInfo) -> Table:
    """The timeline for people, in their zone; an entry of several moments shows the first and the last."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("time", no_wrap=True)
    table.add_column("until", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("detail", overflow="fold")
    for entry in timeline:
        last = _clock_time(entry.last_ms, zone) if entry.last_ms != entry.first_ms else ""
        table.add_row(_time(entry.first_ms, zone), last, entry.event, str(entry.count), Text(entry.detail))
    return table


def states_table(states: Sequence[StateCount]) -> Table:
    """The states for people."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("state", no_wrap=True)
    table.add_column("devices", justify="right")
    table.add_column("reason", overflow="fold")
    for count in states:
        table.add_row(count.state, str(count.devices), Text(count.reason))
    return table


def _show(facts: Sequence[tuple[str, str]], *tables: Table) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    for name, value in facts:
        if value:
            console.print(Text(f"{name:<10}", style="bold").append(value, style="not bold"), soft_wrap=True)
    for table in tables:
        if table.row_count:
            console.print()
            console.print(table)


def _zone() -> ZoneInfo:
    return load(Settings, environment()).zone()


def _entry_object(entry: TimelineEntry) -> dict[str, Any]:
    return {
        "first_ms": entry.first_ms,
        "last_ms": entry.last_ms,
        "event": entry.event,
        "count": entry.count,
        "detail": entry.detail,
    }


def _devices(count: int) -> str:
    return "device" if count == 1 else "devices"


def _time(time_ms: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(time_ms / 1000, zone).isoformat(" ", "milliseconds")[:23]


def _clock_time(time_ms: int, zone: ZoneInfo) -> str:
    return _time(time_ms, zone)[11:]
