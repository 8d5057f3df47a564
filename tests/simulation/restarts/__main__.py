"""`python -m tests.simulation.restarts`: restarts every process of a simulated installation in order, under load."""

import sys

import click

from tests.simulation.model.smoothness import BOUND_S
from tests.simulation.restarts.world import restarts


@click.command(context_settings={"show_default": True})
@click.option("--devices", type=click.IntRange(1), default=500, help="Connected Android devices.")
@click.option("--rate", type=click.FloatRange(0.1), default=50.0, help="Requests a second.")
@click.option("--pause", "pause_s", type=click.FloatRange(1.0), default=8.0, help="Seconds between two restarts.")
@click.option("--seed", type=click.IntRange(0), default=1, help="Seed of all random choices.")
def main(devices: int, rate: float, pause_s: float, seed: int) -> None:
    """Restart every process of a simulated installation in order, under load. Exit code 1: a request noticed it."""
    outcome = restarts(devices, rate, pause_s, seed)
    for finding in outcome.findings:
        click.echo(finding)
    if not outcome.findings:
        click.echo(f"no request failed or took over {BOUND_S:g} s; nothing was lost or shown twice")
    for name, count in outcome.counts.most_common():
        click.echo(f"{name:20} {count}")
    click.echo(f"{outcome.simulated_s:.0f} simulated seconds, {outcome.cpu_s:.0f} s of CPU time")
    sys.exit(1 if outcome.findings else 0)


if __name__ == "__main__":
    main()
