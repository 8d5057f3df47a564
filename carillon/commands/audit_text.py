"""The output of `carillon audit`: text for people, JSON objects for programs."""

import json
from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from rich.table import Table

from carillon.commands import output
from carillon.commands.output import Listing, device_count, say, say_named
from edge.console.api.answers.audits import DeviceAudit, PushAudit, PushOnDevice, StateCount, TimelineEntry


def warn_if_behind(records: int, *, as_json: bool = False) -> None:
    """Warn on standard error that the output lacks the newest records, as --allow-behind permits."""
    if records:
        missing = "record of the event log is" if records == 1 else "records of the event log are"
        text = f"Incomplete: the newest {records} {missing} missing."
        say(json.dumps({"warning": text, "records_behind": records}) if as_json else text, err=True)


def push_facts(answer: PushAudit) -> list[tuple[str, str]]:
    """Return the lines above the timeline as (name, value)."""
    sizes = ", ".join(f"{size.partition}: {size.devices}" for size in answer.partitions)
    return [
        ("push", str(answer.msgid)),
        ("app", answer.appkey),
        ("kind", answer.kind),
        ("audience", f"{answer.audience} ({device_count(answer.audience_count)})"),
        ("partitions", sizes),
        ("request", answer.request_json),
    ]


def device_facts(answer: DeviceAudit) -> list[tuple[str, str]]:
    """Return the lines above the timeline as (name, value)."""
    return [("device", answer.token), ("app", answer.appkey)]


def timeline_table(timeline: Sequence[TimelineEntry], zone: ZoneInfo) -> Table:
    """Return the timeline as a table in the zone; an entry that spans time shows its first and last time."""
    table = Listing()
    table.add_column("time", no_wrap=True)
    table.add_column("until", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("detail", overflow="fold")
    for entry in timeline:
        last = _time(entry.last_ms, zone)[11:] if entry.last_ms != entry.first_ms else ""
        table.add(_time(entry.first_ms, zone), last, entry.event, str(entry.count), entry.detail)
    return table


def states_table(states: Sequence[StateCount]) -> Table:
    """Return the device counts by state as a table."""
    table = Listing()
    table.add_column("state", no_wrap=True)
    table.add_column("devices", justify="right")
    table.add_column("reason", overflow="fold")
    for count in states:
        table.add(count.state, str(count.devices), count.reason)
    return table


def show_on_device(answer: PushOnDevice, zone: ZoneInfo) -> None:
    """Print the verdict, the clauses and the timeline of a push on one device."""
    clauses = Listing()
    for name in ("clause", "holds", "the device had"):
        clauses.add_column(name, overflow="fold")
    for clause in answer.clauses:
        clauses.add(clause.text, "yes" if clause.holds else "no", clause.found)
    say("")
    show([("device", answer.token), ("verdict", answer.verdict)], clauses, timeline_table(answer.timeline, zone))


def app_line(entry: TimelineEntry, zone: ZoneInfo) -> str:
    """Return one entry of an app's timeline as a line of text."""
    if entry.event == "push":
        count = f" ({device_count(entry.count)})"
    else:
        count = f" ({entry.count} times)" if entry.count > 1 else ""
    return f"{_time(entry.first_ms, zone)}  {entry.event}{count}  {entry.detail}"


def show(facts: Sequence[tuple[str, str]], *with_rows: Table) -> None:
    """Print the lines, then the tables that have rows."""
    for name, value in facts:
        if value:
            say_named(name, value)
    for one in with_rows:
        if one.row_count:
            say("")
            output.show(one)


def _time(time_ms: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(time_ms / 1000, zone).isoformat(" ", "milliseconds")[:23]
