"""`carillon audit export`: the outcome of a push on each device, as a file."""

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import IO

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from carillon.commands.audit_text import warn_if_behind
from carillon.commands.role_calls import call_role
from protos.analytics.v1.analytics_pb2 import ExportFormat, ExportPushRequest, ExportPushResponse
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.runtime.rpc.channel import Channel

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
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="The file; standard output unless given."
)
@allow_behind
def export(msgid: int, file_format: str, output: Path | None, allow_behind: bool) -> None:
    """Write the outcome of a push on each device of its audience: a row for each message id of each device.

    The file that --output names appears only once it is complete.
    """
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
    """Write the export and show its progress. click.ClickException: it has fewer rows than announced."""
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
