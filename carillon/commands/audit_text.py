"""What `carillon audit` prints, for people and for programs."""

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

from protos.analytics.v1.analytics_pb2 import (
    AuditDeviceResponse,
    AuditPushResponse,
    PushOnDevice,
    StateCount,
    TimelineEntry,
)

_WIDE = 400
"""Columns when the output is no terminal: nothing is folded then."""


def print_json(answer: dict[str, Any]) -> None:
    click.echo(json.dumps(answer, ensure_ascii=False))


def warn_if_behind(records: int) -> None:
    """Say that what is printed lacks the newest records."""
    if records:
        click.echo(f"Incomplete: analytics is {records} records behind the event log; try again later.", err=True)


def push_object(answer: AuditPushResponse) -> dict[str, Any]:
    """The answer for programs; times are milliseconds since 1970 UTC."""
    return {
        "msgid": answer.msgid,
        "appkey": answer.appkey,
        "kind": answer.kind,
        "audience": answer.audience,
        "audience_count": answer.audience_count,
        "partitions": [{"partition": size.partition, "devices": size.devices} for size in answer.partitions],
        "request_json": answer.request_json,
        "timeline": [entry_object(entry) for entry in answer.timeline],
        "states": [{"state": count.state, "reason": count.reason, "devices": count.devices} for count in answer.states],
        **({"device": _on_device_object(answer.device)} if answer.HasField("device") else {}),
        "records_behind": answer.records_behind,
    }


def device_object(answer: AuditDeviceResponse) -> dict[str, Any]:
    """The answer for programs; times are milliseconds since 1970 UTC."""
    return {
        "appkey": answer.appkey,
        "token": answer.token,
        "timeline": [entry_object(entry) for entry in answer.timeline],
        "records_behind": answer.records_behind,
    }


def entry_object(entry: TimelineEntry) -> dict[str, Any]:
    return {
        "first_ms": entry.first_ms,
        "last_ms": entry.last_ms,
        "event": entry.event,
        "count": entry.count,
        "detail": entry.detail,
    }


def push_facts(answer: AuditPushResponse) -> list[tuple[str, str]]:
    """What stands above the timeline."""
    sizes = ", ".join(f"{size.partition}: {size.devices}" for size in answer.partitions)
    return [
        ("push", str(answer.msgid)),
        ("app", answer.appkey),
        ("kind", answer.kind),
        ("audience", f"{answer.audience} ({answer.audience_count} {_devices(answer.audience_count)})"),
        ("partitions", sizes),
        ("request", answer.request_json),
    ]


def device_facts(answer: AuditDeviceResponse) -> list[tuple[str, str]]:
    """What stands above the timeline."""
    return [("device", answer.token), ("app", answer.appkey)]


def timeline_table(timeline: Sequence[TimelineEntry], zone: ZoneInfo) -> Table:
    """The timeline for people, in their zone; an entry of several moments shows the first and the last."""
    table = _table()
    table.add_column("time", no_wrap=True)
    table.add_column("until", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("detail", overflow="fold")
    for entry in timeline:
        last = _time(entry.last_ms, zone)[11:] if entry.last_ms != entry.first_ms else ""
        table.add_row(_time(entry.first_ms, zone), last, entry.event, str(entry.count), Text(entry.detail))
    return table


def states_table(states: Sequence[StateCount]) -> Table:
    """The states for people."""
    table = _table()
    table.add_column("state", no_wrap=True)
    table.add_column("devices", justify="right")
    table.add_column("reason", overflow="fold")
    for count in states:
        table.add_row(count.state, str(count.devices), Text(count.reason))
    return table


def on_device(told: PushOnDevice, zone: ZoneInfo) -> None:
    """Print what a push was to one device."""
    clauses = _table()
    for name in ("clause", "holds", "the device had"):
        clauses.add_column(name, overflow="fold")
    for clause in told.clauses:
        clauses.add_row(Text(clause.text), "yes" if clause.holds else "no", Text(clause.found))
    click.echo()
    show([("device", told.token), ("verdict", told.verdict)], clauses, timeline_table(told.timeline, zone))


def app_line(entry: TimelineEntry, zone: ZoneInfo) -> str:
    """One thing that was done with an app, for people."""
    count = f" ({entry.count} {_devices(entry.count)})" if entry.count != 1 or entry.event == "push" else ""
    return f"{_time(entry.first_ms, zone)}  {entry.event}{count}  {_printable(entry.detail)}"


def show(facts: Sequence[tuple[str, str]], *tables: Table) -> None:
    """Print facts, then those of the tables that have rows."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    for name, value in facts:
        if value:
            console.print(Text(f"{name:<10} ", style="bold").append(value, style="not bold"), soft_wrap=True)
    for table in tables:
        if table.row_count:
            console.print()
            console.print(table)


def _on_device_object(told: PushOnDevice) -> dict[str, Any]:
    return {
        "token": told.token,
        "in_audience": told.in_audience,
        "verdict": told.verdict,
        "clauses": [{"text": one.text, "holds": one.holds, "found": one.found} for one in told.clauses],
        "timeline": [entry_object(entry) for entry in told.timeline],
    }


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")


def _printable(text: str) -> str:
    """No control characters of others reach the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _devices(count: int) -> str:
    return "device" if count == 1 else "devices"


def _time(time_ms: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(time_ms / 1000, zone).isoformat(" ", "milliseconds")[:23]
