"""`python -m tests.soak`: the ledger test, which sends pushes while processes are killed, then checks every push."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from testkit.kafka.broker import KafkaBroker
from tests.soak.ledger import Outcome
from tests.soak.plan import Plan, Verdict
from tests.soak.run import Soak, soak

_REFRESH_S = 0.5


@click.command(context_settings={"show_default": True})
@click.option("--minutes", type=click.FloatRange(0.2), default=5.0, help="How long the load lasts.")
@click.option("--devices", type=click.IntRange(2), default=20, help="Android devices to begin with.")
@click.option("--rate", type=click.FloatRange(0.1), default=10.0, help="Requests a second.")
@click.option("--seed", type=int, default=1, help="Seed of all random choices; the same seed makes the same ones.")
@click.option("--kafka", is_flag=True, help="One process a role on a real Kafka broker, not `carillon up`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Keep the ledger and the data here; default: delete them."
)
def main(
    minutes: float, devices: int, rate: float, seed: int, kafka: bool, as_json: bool, directory: Path | None
) -> None:
    """Send pushes under faults, then check that none was lost or shown twice. Exit code 1: there are violations."""
    plan = Plan(minutes * 60, devices, rate, seed)
    with tempfile.TemporaryDirectory() as temporary:
        verdict = asyncio.run(_run(plan, directory or Path(temporary), kafka))
    if as_json:
        found = [violation._asdict() for violation in verdict.violations]
        click.echo(json.dumps({"violations": found, "timelines": verdict.timelines, **verdict.counts}))
    else:
        _show(verdict)
    sys.exit(1 if verdict.violations else 0)


async def _run(plan: Plan, directory: Path, kafka: bool) -> Verdict:
    broker = KafkaBroker(directory / "kafka") if kafka else None
    if broker is not None:
        await asyncio.to_thread(broker.start)
    try:
        run = soak(plan, directory, broker)
        progress = asyncio.create_task(_progress(run))
        try:
            return await run.run()
        finally:
            progress.cancel()
            await asyncio.wait([progress])
    finally:
        if broker is not None and broker.running:
            await asyncio.to_thread(broker.stop)


async def _progress(soak: Soak) -> None:
    """Show one line of progress on standard error when that is a terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        while True:
            ledger = soak.ledger
            counted = ", ".join(f"{ledger.count(outcome)} {outcome.value}" for outcome in Outcome)
            bar.update(task, description=f"{soak.step}: {counted}; {soak.faults.done.total()} faults")
            await asyncio.sleep(_REFRESH_S)


def _show(verdict: Verdict) -> None:
    console = Console()
    table = Table(box=None, show_header=False)
    for name, value in verdict.counts.items():
        text = ", ".join(f"{key}: {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, text)
    console.print(table)
    for violation in verdict.violations:
        console.print(f"[bold red]{violation.rule}[/] {violation.text} {list(violation.msgids)}", highlight=False)
    for timeline in verdict.timelines:
        console.print(timeline, highlight=False, markup=False)
    console.print("[bold green]no violations[/]" if not verdict.violations else f"{len(verdict.violations)} violations")


if __name__ == "__main__":
    main()
