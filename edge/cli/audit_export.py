"""`carillon audit export`: what became of a push on each device, as a file."""

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import IO

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from edge.cli.audit_text import warn_if_behind
from edge.cli.reach import reach
from protos.analytics.v1.analytics_pb2 import ExportFormat, ExportPushRequest, ExportPushResponse
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.runtime.rpc import Channel

FORMATS = {"csv": ExportFormat.EXPORT_FORMAT_CSV, "parquet": ExportFormat.EXPORT_FORMAT_PARQUET}


@click.command()
@click.argument("msgid", type=click.IntRange(min=1))
@click.option("--format", "file_format", type=click.Choice(list(FORMATS)), default="csv", show_default=True)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="The file; the standard output unless given."
)
def export(msgid: int, file_format: str, output: Path | None) -> None:
    """What became of a push on each device of its audience, as a file: a row for each message id of each device."""
    if output is None and file_format == "parquet" and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for a terminal; name a file with --output")
    request = ExportPushRequest(msgid=msgid, format=FORMATS[file_format])

    async def call(channel: Channel) -> None:
        if output is None:
            await _write(channel, request, nullcontext(sys.stdout.buffer))
            return
        part = output.with_name(f"{output.name}.part")
        try:
            await _write(channel, request, part.open("wb"))
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)

    try:
        reach("analytics", call)
    except OSError as error:
        raise click.ClickException(f"{output or 'the output'} cannot be written: {error.strerror}") from None


async def _write(channel: Channel, request: ExportPushRequest, opened: "nullcontext[IO[bytes]] | IO[bytes]") -> None:
    with opened as file, _bar() as progress:
        async with aclosing(_answers(channel, request)) as answers:
            first = await anext(answers)
            warn_if_behind(first.records_behind)
            task = progress.add_task(f"{first.rows} rows", total=None)
            async for answer in answers:
                file.write(answer.piece)
                progress.advance(task, len(answer.piece))
            progress.update(task, total=progress.tasks[task].completed)
        file.flush()


async def _answers(channel: Channel, request: ExportPushRequest) -> AsyncGenerator[ExportPushResponse, None]:
    async def requests() -> AsyncIterator[ExportPushRequest]:
        yield request

    async for answer in AnalyticsServiceStub(channel).ExportPush(requests()):
        yield answer


def _bar() -> Progress:
    """Where a person looks: on a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
