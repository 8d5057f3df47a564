"""Output of commands: JSON for programs; for people tables, as wide as a terminal, and unfolded and uncut elsewhere.

Everything that commands print goes through `say`, `show` or a `Listing`, which show control characters as escapes:
devices and senders chose many of these texts. A rule of ruff (banned-api in pyproject.toml) rejects every other way to
print.
"""

import asyncio
import io
import json
import os
import select
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from carillon.environment import environment
from services.domain.settings import Settings, load
from services.errors import CarillonError
from services.process.logs import printable

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
as_json_lines = click.option("--json", "json_output", is_flag=True, help="Print JSON, one object a line.")

_UNFOLDED_WIDTH = 100_000
_LEAST_WIDTH = 60
"""Narrower terminals wrap the lines themselves: rich would cut cells that must stay whole."""


_CLOSED_POLL_S = 0.2


class LineOutput:
    """Standard output of a command that prints lines until it is stopped."""

    def __init__(self) -> None:
        self._is_closed = False

    def print(self, line: str) -> None:
        """Print a line, unless nobody reads standard output any more."""
        try:
            say(line)
        except BrokenPipeError:
            self._close()

    async def closed(self) -> None:
        """Return once nobody reads standard output any more, such as after the first line with `| head -1`."""
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # errors and hang-ups are reported without being asked for
        while not (self._is_closed or poll.poll(0)):
            await asyncio.sleep(_CLOSED_POLL_S)
        self._close()

    def _close(self) -> None:
        """Redirect standard output to /dev/null: the interpreter's flush at its end would raise BrokenPipeError."""
        if not self._is_closed:
            self._is_closed = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


def say(*lines: str, err: bool = False) -> None:
    """Print lines, on standard error with `err`. A line end inside a line becomes an escape: it may be forged."""
    click.echo("\n".join(map(printable, lines)), err=err)


def say_light_on_dark(*lines: str) -> None:
    """Print lines of block characters in white on black, whatever the colours of the terminal."""
    click.echo("\n".join(click.style(printable(line), fg="bright_white", bg="black") for line in lines))


def is_unicode_terminal() -> bool:
    """Return whether standard output is a terminal that has block characters."""
    return sys.stdout.isatty() and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def say_named(name: str, value: str) -> None:
    """Print a line of a name, in bold on a terminal, and its value."""
    click.echo(f"{click.style(f'{printable(name):<10}', bold=True)} {printable(value)}")


class Listing(Table):
    """A table without lines around its cells, whose cells are texts without markup."""

    def __init__(self) -> None:
        super().__init__(box=None, pad_edge=False, header_style="bold")

    def add(self, *cells: str) -> None:
        """Add a row."""
        self.add_row(*(Text(printable(cell)) for cell in cells))

    def add_named(self, name: str, value: str) -> None:
        """Add a row of a name in bold and its value, which a terminal folds."""
        self.add_row(Text(printable(name), style="bold"), Text(printable(value), overflow="fold"))


def show(*lines: RenderableType) -> None:
    """Print tables; a terminal folds what is too wide for it, and nothing else does."""
    if sys.stdout.isatty():
        Console(width=max(Console().width, _LEAST_WIDTH)).print(*lines, sep="\n")
        return
    unfolded = io.StringIO()
    Console(file=unfolded, width=_UNFOLDED_WIDTH, color_system=None).print(*lines, sep="\n")
    say(*(line.rstrip() for line in unfolded.getvalue().rstrip("\n").split("\n")))


def print_json(answer: msgspec.Struct | Mapping[str, Any], *, err: bool = False) -> None:
    """Print an object as one line of JSON."""
    say(json.dumps(msgspec.to_builtins(answer), ensure_ascii=False), err=err)


def print_table(rows: Iterable[Mapping[str, object]], if_none: str, numbers: Sequence[str] = ()) -> None:
    """Print a row for each mapping, or the sentence if there is none; the columns of `numbers` stand at the right."""
    rows = list(rows)
    if not rows:
        say(if_none)
        return
    listed = Listing()
    for name in rows[0]:
        listed.add_column(name, overflow="fold", justify="right" if name in numbers else "left")
    for row in rows:
        listed.add(*("-" if value in ("", None) else str(value) for value in row.values()))
    show(listed)


def device_count(count: int) -> str:
    """Return a number of devices in words, such as `1 device`."""
    return f"{count} device" if count == 1 else f"{count} devices"


def time_text(time_ms: int, precision: str = "seconds") -> str:
    """Return a time in CARILLON_TIMEZONE, or else in the zone of this machine; "" for none."""
    if not time_ms:
        return ""
    try:
        zone = load(Settings, environment()).zone()
    except CarillonError as error:
        raise click.ClickException(str(error)) from None
    return datetime.fromtimestamp(time_ms / 1000, zone).isoformat(sep=" ", timespec=precision)
