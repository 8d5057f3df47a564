"""`carillon audit`: what happened to a push, a device or an app, from the event log."""

import json
import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO
from zoneinfo import ZoneInfo

import click
import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from carillon.commands import output
from carillon.commands.output import Listing, as_json, device_count, print_json, print_table, say, say_named, time_text
from carillon.commands.role_calls import call_role
from carillon.environment import environment
from carillon.installation.chosen import chosen_installation
from carillon.installation.remote import console_client
from console.audit.actions import SUBJECTS
from console.audit.answers import (
    ActionEntry,
    ActionList,
    ChannelCounts,
    DeviceAudit,
    PushAudit,
    PushOnDevice,
    StateCount,
    TimelineEntry,
)
from protos.analytics.v1.analytics_pb2 import ExportFormat, ExportPushRequest, ExportPushResponse
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.domain.settings import Settings, load
from services.domain.statistics_rows import CHANNEL_COUNTS
from services.errors import CarillonError
from services.net.rpc.channel import Channel

# The output of `carillon audit`: text for people, JSON objects for programs.


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


def channels_table(channels: Sequence[ChannelCounts]) -> Table:
    """Return the device counts by channel as a table."""
    table = Listing()
    table.add_column("channel", no_wrap=True)
    for name in CHANNEL_COUNTS:
        table.add_column(name, justify="right")
    for each in channels:
        table.add(*map(str, channel_cells(each).values()))
    return table


def channel_cells(counts: ChannelCounts) -> dict[str, str | int]:
    """Return the counts of one channel by the names of their columns."""
    name = f"{counts.channel} (simulator)" if counts.simulated else counts.channel
    return {"channel": name, **{each: getattr(counts, each) for each in CHANNEL_COUNTS}}


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


# `carillon audit export`: the outcome of a push on each device, as a file.

CSV = ExportFormat.EXPORT_FORMAT_CSV
MSGID = click.IntRange(1, 2**63 - 1)
"""The message ids that the service accepts."""
allow_behind = click.option(
    "--allow-behind",
    is_flag=True,
    help="Answer also while analytics lacks the newest records of the event log, and warn how many.",
)
FORMATS = {"csv": CSV, "parquet": ExportFormat.EXPORT_FORMAT_PARQUET}


@click.command()
@click.argument("msgid", type=MSGID)
@click.option("--format", "file_format", type=click.Choice(list(FORMATS)), default="csv", show_default=True)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="The file; standard output with `-` or unless given.",
)
@allow_behind
def export(msgid: int, file_format: str, output: Path | None, allow_behind: bool) -> None:
    """Write the outcome of a push on each device of its audience: a row for each message id of each device.

    The file that --output names appears only once it is complete.
    """
    if output == Path("-"):
        output = None
    if output is None and file_format == "parquet" and sys.stdout.isatty():
        raise click.UsageError("Parquet cannot be shown on a terminal; name a file with --output")
    if output is not None and output.exists() and not output.is_file():
        raise click.UsageError(f"{output} is no regular file; omit --output to write to standard output")
    request = ExportPushRequest(msgid=msgid, format=FORMATS[file_format], allow_behind=allow_behind)
    path = output and output.resolve()

    async def call(channel: Channel) -> None:
        if path is None:
            await _write(channel, request, sys.stdout.buffer)
        else:
            await _write_file(channel, request, path)

    try:
        call_role("analytics", call)
    except OSError as error:
        raise click.ClickException(f"{output or 'the output'} cannot be written: {error.strerror}") from None


async def _write_file(channel: Channel, request: ExportPushRequest, output: Path) -> None:
    """Write to a temporary file first: an export that fails leaves an existing file unchanged."""
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("wb") as file:
            await _write(channel, request, file)
            os.fsync(file.fileno())
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


async def _write(channel: Channel, request: ExportPushRequest, file: IO[bytes]) -> None:
    """Write the export and show its progress. click.ClickException: a CSV has fewer rows than announced."""
    is_csv = request.format == CSV
    async with aclosing(_answers(channel, request)) as answers:
        first = await anext(answers)
        warn_if_behind(first.records_behind)
        with _progress_bar() as progress:
            task = progress.add_task(f"{first.rows} rows", total=first.rows if is_csv else None, written="")
            lines = written = 0
            async for answer in answers:
                file.write(answer.piece)
                written += len(answer.piece)
                lines += answer.piece.count(b"\n") if is_csv else 0
                progress.update(task, completed=max(0, lines - 1), written=decimal(written))
            file.flush()
            progress.update(task, total=progress.tasks[task].completed)
    if is_csv and lines - 1 < first.rows:
        raise click.ClickException(f"the file ended early: {max(0, lines - 1)} of {first.rows} rows; try again")


async def _answers(channel: Channel, request: ExportPushRequest) -> AsyncGenerator[ExportPushResponse, None]:
    async def requests() -> AsyncIterator[ExportPushRequest]:
        yield request

    async for answer in AnalyticsServiceStub(channel).ExportPush(requests()):
        yield answer


def _progress_bar() -> Progress:
    """Return a progress bar, shown on terminals only. CSV progresses by rows; for Parquet only the bytes are known."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[written]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())


# `carillon audit actions`: who did what, through the console's interface for programs.


@click.command()
@click.option("--app", metavar="APPKEY", help="Only what concerns this app.")
@click.option("--who", metavar="NAME", help="Only what this account did: a log-in name, user/ID or token/ID.")
@click.option("--subject", type=click.Choice(SUBJECTS), help="Only actions about this.")
@click.option("--from", "first", metavar="DAY", help="YYYY-MM-DD of the service's time zone, included; 30 days ago.")
@click.option("--to", "last", metavar="DAY", help="YYYY-MM-DD, included; today.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Actions at most.")
@click.option("--cursor", help="The `next` of the page before.")
@as_json
def actions(as_json: bool, **asked: str | int | None) -> None:
    """List what accounts and operators did with the team of an API token and its apps, the newest first.

    Needs a console: `carillon --url https://HOST --token-file FILE audit actions …`.
    """
    answer = console_client().get(ActionList, "audit", **asked)
    if as_json:
        print_json(answer)
    else:
        print_table(map(_row, answer.actions), "There is no such action.")


def _row(entry: ActionEntry) -> dict[str, object]:
    return {
        "time": time_text(entry.time_ms),
        "who": entry.who or entry.address,
        "action": entry.action,
        "app": entry.appkey,
        "detail": entry.detail,
    }


_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def audit() -> None:
    """Explain a push, a device or an app from the event log.

    An answer covers every record that is in the event log when the command starts. While analytics is behind the log,
    the command fails unless --allow-behind is given.
    """


audit.add_command(export)
audit.add_command(actions)


@audit.command()
@click.argument("msgid", type=MSGID)
@click.option("--device", "token", default="", metavar="TOKEN", help="Also explain the push for this device.")
@allow_behind
@_as_json
def push(msgid: int, token: str, allow_behind: bool, as_json: bool) -> None:
    """Show what happened to the push with this message id, and how many devices are in which state.

    Each device of the audience is in one state. For a push with several message ids the states are those of the first,
    unless MSGID is another one.
    """
    answer = chosen_installation().audit_push(msgid, token, allow_behind=allow_behind)
    warn_if_behind(answer.records_behind, as_json=as_json)
    if as_json:
        print_json(answer)
        return
    zone = _zone()
    tables = timeline_table(answer.timeline, zone), states_table(answer.states), channels_table(answer.channels)
    show(push_facts(answer), *tables)
    if answer.device is not msgspec.UNSET:
        show_on_device(answer.device, zone)


@audit.command()
@click.argument("appkey")
@click.argument("token")
@allow_behind
@_as_json
def device(appkey: str, token: str, allow_behind: bool, as_json: bool) -> None:
    """Show what happened to a device: registrations, changes and their origins, sessions and messages."""
    answer = chosen_installation().audit_device(appkey, token, allow_behind=allow_behind)
    warn_if_behind(answer.records_behind, as_json=as_json)
    if as_json:
        print_json(answer)
        return
    show(device_facts(answer), timeline_table(answer.timeline, _zone()))


@audit.command()
@click.argument("appkey")
@click.option(
    "--from", "first", metavar="TIME", help="ISO 8601 date or time, in CARILLON_TIMEZONE; a day ago unless given."
)
@click.option("--to", "last", metavar="TIME", help="Show entries before this time; now unless given.")
@allow_behind
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def app(appkey: str, first: str | None, last: str | None, allow_behind: bool, as_json: bool) -> None:
    """Show who did what with an app, latest entries last.

    The entries are pushes and cancels, timed tasks, settings, tags changed by its app servers, and by the hour the
    requests of its devices.
    """
    zone = _zone()
    to_ms = moment_ms("--to", last, zone) if last else int(time.time() * 1000)
    from_ms = moment_ms("--from", first, zone) if first else to_ms - int(timedelta(days=1).total_seconds() * 1000)
    if from_ms >= to_ms:
        raise click.BadParameter("must be earlier than --to", param_hint="--from")
    for page in chosen_installation().audit_app(appkey, from_ms, to_ms, allow_behind=allow_behind):
        warn_if_behind(page.records_behind, as_json=as_json)
        for entry in page.timeline:
            if as_json:
                print_json(entry)
            else:
                say(app_line(entry, zone))
        sys.stdout.flush()


def _zone() -> ZoneInfo:
    try:
        return load(Settings, environment()).zone()
    except CarillonError as error:
        raise click.ClickException(str(error)) from None


def moment_ms(option: str, text: str, zone: ZoneInfo) -> int:
    """Return the moment that an option names, in ms since 1970; one without a zone is in `zone`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter("must look like 2026-11-21 or 2026-11-21T14:05:00", param_hint=option) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp() * 1000)
