"""Tables and lists of the commands: as wide as a terminal, and unfolded, uncut and without padding elsewhere."""

import io
import sys

import click
from rich.console import Console, RenderableType
from rich.table import Table

_UNFOLDED_WIDTH = 100_000
_LEAST_WIDTH = 60
"""Narrower terminals wrap the lines themselves: rich would cut cells that must stay whole."""


def table() -> Table:
    """Return an empty table without lines around its cells."""
    return Table(box=None, pad_edge=False, header_style="bold")


def show(*lines: RenderableType) -> None:
    """Print tables and texts; a terminal folds what is too wide for it, and nothing else does."""
    if sys.stdout.isatty():
        Console(width=max(Console().width, _LEAST_WIDTH)).print(*lines, sep="\n")
        return
    unfolded = io.StringIO()
    Console(file=unfolded, width=_UNFOLDED_WIDTH, color_system=None).print(*lines, sep="\n")
    for line in unfolded.getvalue().splitlines():
        click.echo(line.rstrip())
