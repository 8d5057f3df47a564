"""Output of commands that ask a console: one JSON object for programs, a table for people."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec
from rich.text import Text

from carillon.commands.tables import show, table
from carillon.environment import environment
from services.runtime.errors import CarillonError
from services.runtime.process.settings import Settings, load

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def print_json(answer: msgspec.Struct) -> None:
    record: Any = msgspec.to_builtins(answer)
    click.echo(json.dumps(record, ensure_ascii=False))


def print_table(rows: Iterable[Mapping[str, object]], if_none: str, numbers: Sequence[str] = ()) -> None:
    """Print a row for each mapping, or the sentence if there is none; the columns of `numbers` stand at the right."""
    rows = list(rows)
    if not rows:
        click.echo(if_none)
        return
    listed = table()
    for name in rows[0]:
        listed.add_column(name, overflow="fold", justify="right" if name in numbers else "left")
    for row in rows:
        listed.add_row(*(Text("-" if value in ("", None) else str(value)) for value in row.values()))
    show(listed)


def device_count(count: int) -> str:
    """Return a number of devices in words, such as `1 device`."""
    return f"{count} device" if count == 1 else f"{count} devices"


def time_text(time_ms: int) -> str:
    """Return a time in CARILLON_TIMEZONE, or else in the zone of this machine; "" for none."""
    if not time_ms:
        return ""
    try:
        zone = load(Settings, environment()).zone()
    except CarillonError as error:
        raise click.ClickException(str(error)) from None
    return datetime.fromtimestamp(time_ms / 1000, zone).isoformat(sep=" ", timespec="seconds")
