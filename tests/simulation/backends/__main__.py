"""`python -m tests.simulation.backends`: worlds of the roles behind the edge; prints each finding with its trace."""

import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import click

from tests.simulation.backends.world import Backends
from tests.simulation.kernel.running import Kind, Outcome, run_world, run_worlds, warm_up, without_needless_faults

_TRACE_LINES = 200
_FEW = 3
"""So few worlds take less than `warm_up` does."""


@dataclass
class Totals:
    """Sums over all worlds of a run. `faults`: those that took effect, by kind."""

    started_s: float = field(default_factory=time.monotonic)
    worlds: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.simulated_s += outcome.simulated_s
        self.cpu_s += outcome.cpu_s
        self.steps += outcome.steps
        self.faults.update(outcome.effects)
        if outcome.findings:
            self.failed.append(outcome.seed)

    def show(self) -> None:
        real_s = time.monotonic() - self.started_s
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        seeds = ", ".join(map(str, self.failed))
        click.echo(
            f"{self.worlds} worlds in {real_s:.1f} s ({self.worlds / real_s:.2f} a second)\n"
            f"{self.simulated_s / 3600:.2f} simulated hours, {self.simulated_s / real_s:.0f} times as fast as real time"
            f" ({self.simulated_s / self.cpu_s:.0f} times, by CPU time); {self.steps} callbacks\n"
            f"faults: {kinds or 'none'}\n"
            f"findings in {len(self.failed)} worlds{': seeds ' if self.failed else ''}{seeds}"
        )


@click.command(context_settings={"show_default": True})
@click.option("--seeds", type=click.IntRange(1), default=100, help="How many worlds.")
@click.option("--first", type=click.IntRange(0), default=0, help="The first seed.")
@click.option("--at-once", type=click.IntRange(1), default=1, help="Worlds that run at the same time.")
@click.option("--faults", type=click.IntRange(0), default=10, help="Mean number of faults in a world.")
@click.option("--trace", is_flag=True, help="Print the whole trace of each world.")
@click.option("--digests", is_flag=True, help="Print the hash of each trace.")
@click.option("--minimise/--no-minimise", default=True, help="Remove the faults that a finding does not need.")
def main(seeds: int, first: int, at_once: int, faults: int, trace: bool, digests: bool, minimise: bool) -> None:
    """Run simulated worlds. Exit code 1: there are findings."""
    kind, totals = Backends(faults), Totals()
    if seeds > _FEW:
        warm_up(kind)
    jobs = [partial(run_world, kind, seed, keeps_trace=trace) for seed in range(first, first + seeds)]
    with suppress(KeyboardInterrupt):  # the worlds that have run are shown
        for outcome in run_worlds(jobs, at_once):
            totals.add(outcome)
            if digests:
                click.echo(f"{outcome.seed} {outcome.digest}")
            if trace:
                click.echo("".join(outcome.lines), nl=False)
            elif outcome.findings:
                _show(kind, outcome, minimise)
    if not digests:
        totals.show()
    sys.exit(1 if totals.failed else 0)


def _show(kind: Kind, outcome: Outcome, minimise: bool) -> None:
    """Print a finding, the faults that it needs, and the end of its trace."""
    fewest = without_needless_faults(kind, outcome) if minimise else outcome
    click.echo("".join(fewest.lines[-_TRACE_LINES:]), nl=False)
    click.echo(f"seed {outcome.seed}: {len(fewest.faults)} of {len(outcome.faults)} faults suffice:")
    for fault in fewest.faults:
        click.echo(f"  {fault}")
    for finding in fewest.findings:
        click.echo(f"  {finding}")


if __name__ == "__main__":
    main()
