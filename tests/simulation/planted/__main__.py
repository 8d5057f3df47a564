"""`python -m tests.simulation.planted`: looks for the first seed that finds each planted bug, and prints a table."""

import os
import sys
from collections.abc import Sequence

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from tests.simulation.planted.catalogue import BUGS
from tests.simulation.planted.search import Search, search

_NAMES = [bug.name for bug in BUGS]
_FINDING_CHARACTERS = 60


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(1), default=1000, help="Worlds in which a bug is looked for, at most.")
@click.option("--first", type=click.IntRange(0), default=0, help="The first seed.")
@click.option("--processes", type=click.IntRange(1), default=os.cpu_count() or 1, help="How many worlds run at once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a bug and line.")
@click.argument("names", nargs=-1, type=click.Choice(_NAMES))
def main(seeds: int, first: int, processes: int, as_json: bool, names: Sequence[str]) -> None:
    """Look for the planted bugs of these NAMES, or for all. Exit code 1: one of them is not found."""
    bugs = [bug for bug in BUGS if not names or bug.name in names]
    table = Table("bug", "world", "first seed", "found by", "CPU s", "finding", box=None)
    console = Console(stderr=True)
    missed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        for bug in bugs:
            task = bar.add_task(bug.name, total=seeds)
            found = search(bug, range(first, first + seeds), processes, on_world=lambda task=task: bar.advance(task))  # type: ignore[misc]
            bar.remove_task(task)
            missed += found.seed is None
            _add(table, found)
            if as_json:
                click.echo(msgspec.json.encode(_summary(found)))
            elif console.is_terminal or len(bugs) > 1:
                console.print(f"{bug.name}: {_seed(found)}", highlight=False)
    if not as_json:
        Console().print(table)
        click.echo(f"{len(bugs) - missed} of {len(bugs)} found")
    sys.exit(1 if missed else 0)


def _summary(found: Search) -> dict[str, object]:
    return {
        "bug": found.bug.name,
        "text": found.bug.text,
        "world": found.bug.kind,
        "seed": found.seed,
        "found_by": found.found_by,
        "finding": found.finding,
        "worlds": found.worlds,
        "cpu_seconds": round(found.cpu_s, 1),
    }


def _seed(found: Search) -> str:
    return f"not in {found.worlds} worlds" if found.seed is None else str(found.seed)


def _add(table: Table, found: Search) -> None:
    finding = found.finding[:_FINDING_CHARACTERS].replace("[", r"\[").replace("\n", " ")
    table.add_row(found.bug.name, found.bug.kind, _seed(found), found.found_by, f"{found.cpu_s:.1f}", finding)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of texts have another order in each process otherwise
        command = [sys.executable, "-m", "tests.simulation.planted", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    main()
