"""`python -m tests.simulation`: runs simulated worlds of an installation by seed, and prints their findings."""

import os
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.simulation.kernel.running import Kind, Outcome, run_world, run_worlds, warm_up, without_needless_faults
from tests.simulation.world.hand_overs import HandOverWorld
from tests.simulation.world.run import InstallationWorld

_LAST_LINES = 60
_FEW = 3
"""So few worlds take less than `warm_up` does."""

_SHARE = 1000
"""Worlds whose jobs are made at a time."""


@dataclass
class Totals:
    """The sums over all worlds, and the worlds with findings. `faults`: those that took effect, by kind."""

    worlds: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.simulated_s += outcome.simulated_s
        self.cpu_s += outcome.cpu_s
        self.counts += outcome.counts
        self.faults.update(outcome.effects)
        self.digests[outcome.seed] = outcome.digest
        if outcome.findings:
            self.failed.append(outcome)


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(1), default=100, help="How many worlds to run.")
@click.option("--first", type=click.IntRange(0), default=0, help="The first seed.")
@click.option("--processes", type=click.IntRange(1), default=os.cpu_count() or 1, help="How many worlds run at once.")
@click.option("--replay", type=click.IntRange(0), help="Run the world of this seed alone, and print its whole trace.")
@click.option("--hand-overs", is_flag=True, help="Run worlds whose messages are handed over to a push service.")
@click.option("--shorten", is_flag=True, help="Leave out the faults that a finding does not need; takes long.")
@click.option("--lines", type=click.IntRange(0), default=_LAST_LINES, help="Lines of the trace to print of a finding.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    seeds: int,
    first: int,
    processes: int,
    replay: int | None,
    hand_overs: bool,
    shorten: bool,
    lines: int,
    as_json: bool,
) -> None:
    """Run simulated worlds of the whole service under faults. Exit code 1: there are findings."""
    totals, kind = Totals(), HandOverWorld() if hand_overs else InstallationWorld()
    if replay is not None:
        for outcome in run_worlds([partial(run_world, kind, replay, keeps_trace=True)]):
            totals.add(outcome)
            sys.stdout.writelines([] if as_json else outcome.lines)
    else:
        if seeds > _FEW:
            warm_up(kind)
        with suppress(KeyboardInterrupt):  # the worlds that have run are shown
            _run(totals, kind, first, seeds, processes)
    if shorten:
        totals.failed = [without_needless_faults(kind, outcome) for outcome in totals.failed]
    if as_json:
        click.echo(msgspec.json.encode(_summary(totals)))
    else:
        _show(totals, 0 if replay is not None else lines)
    sys.exit(1 if totals.failed else 0)


def _run(totals: Totals, kind: Kind, first: int, seeds: int, processes: int) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    jobs = (partial(run_world, kind, seed) for seed in range(first, first + seeds))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=seeds)
        while share := list(islice(jobs, _SHARE)):
            for outcome in run_worlds(share, processes):
                totals.add(outcome)
                if outcome.findings:
                    console.print(f"seed {outcome.seed}: {outcome.findings[0]}", markup=False, highlight=False)
                bar.update(task, advance=1, description=f"{len(totals.failed)} with findings")


def _summary(totals: Totals) -> dict[str, Any]:
    return {
        "worlds": totals.worlds,
        "simulated_hours": round(totals.simulated_s / 3600, 3),
        "cpu_seconds": round(totals.cpu_s, 1),
        "faults_an_hour": round(totals.faults.total() / max(totals.simulated_s, 0.001) * 3600),
        "events": dict(totals.counts.most_common()),
        "faults": dict(totals.faults.most_common()),
        "findings": [
            {"seed": outcome.seed, "findings": outcome.findings, "faults": [str(fault) for fault in outcome.faults]}
            for outcome in totals.failed
        ],
        "digests": totals.digests,
    }


def _show(totals: Totals, lines: int) -> None:
    console = Console()
    table = Table(box=None, show_header=False)
    for name, value in _summary(totals).items():
        if name not in ("findings", "digests"):
            counted = ", ".join(f"{key}: {count}" for key, count in value.items()) if isinstance(value, dict) else value
            table.add_row(name.replace("_", " "), str(counted))
    table.add_row("times faster", f"{totals.simulated_s / max(totals.cpu_s, 0.001):.0f} than real time on one core")
    for outcome in totals.failed:
        _show_finding(outcome, lines)
    console.print(table)
    console.print("[bold green]no findings[/]" if not totals.failed else f"{len(totals.failed)} worlds with findings")


def _show_finding(outcome: Outcome, lines: int) -> None:
    if lines:
        sys.stdout.writelines(outcome.lines[-lines:])
    click.echo(f"\nseed {outcome.seed}:")
    for finding in outcome.findings:
        click.echo(f"  {finding}")
    for fault in outcome.faults:
        click.echo(f"  fault: {fault}")
    click.echo(f"  again: python -m tests.simulation --replay {outcome.seed}\n")


if __name__ == "__main__":
    main()
