"""`python -m tests.soak.fuzz`: sends mutated, signed requests and device frames, and saves those that cause errors."""

import asyncio
import json
import logging
import secrets
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import structlog
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tests.soak.fuzz import findings
from tests.soak.fuzz.findings import Finding
from tests.soak.fuzz.run import Plan, Progress, fuzz, replay

_REFRESH_S = 0.5


@click.command(context_settings={"show_default": True})
@click.option(
    "--bodies",
    type=click.IntRange(1),
    default=10_000,
    help="Number of cases to send; each has one or more bodies or frames.",
)
@click.option("--seed", type=int, help="Seed of the cases; default: random, printed.")
@click.option("--first", type=click.IntRange(0), default=0, help="Number of the first case to send.")
@click.option(
    "--replay", "file", type=click.Path(path_type=Path, exists=True), help="Send the cases of a saved finding again."
)
@click.option(
    "--directory", type=click.Path(path_type=Path), default=Path("fuzz-findings"), help="Where findings are saved."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(bodies: int, seed: int | None, first: int, file: Path | None, directory: Path, as_json: bool) -> None:
    """Fuzz the three HTTP interfaces and the gateway. Exit code 1: there are findings.

    Requests are valid ones with mutations, signed after the mutation. A finding is an answer with 500, more than 1 s
    of CPU time, a logged error or traceback, or a service that no longer works.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if file is not None:
        found = uvloop.run(replay(findings.read(file)))
        for one in found:
            click.echo(one.problem)
        click.echo(f"{len(found)} problems")
        sys.exit(1 if found else 0)
    plan = Plan(seed if seed is not None else secrets.randbelow(2**31), first, bodies)
    progress = Progress()
    click.echo(f"seed {plan.seed}", err=True)

    def save(found: Finding) -> None:
        file = findings.write(directory, found)
        click.echo(f"{file}: {findings.kind(found.problem)}", err=True)

    try:
        uvloop.run(_run(plan, progress, save))
    finally:
        _show(plan, progress, as_json=as_json)
    sys.exit(1 if progress.findings else 0)


async def _run(plan: Plan, progress: Progress, save: Callable[[Finding], None]) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=plan.count)

        async def refresh() -> None:
            while True:
                found = f"{len(progress.findings)} findings"
                bar.update(task, completed=progress.sent.total(), description=found)
                await asyncio.sleep(_REFRESH_S)

        refreshing = asyncio.create_task(refresh())
        try:
            await fuzz(plan, progress, save)
        finally:
            refreshing.cancel()


def _show(plan: Plan, progress: Progress, *, as_json: bool) -> None:
    kinds = Counter(findings.kind(found.problem) for found in progress.findings)
    summary = {
        "seed": plan.seed,
        "first": plan.first,
        "sent": progress.sent.total(),
        "bodies and frames": progress.bodies,
        "by interface": dict(progress.sent),
    }
    summary |= {"answers": dict(progress.results), "findings": len(progress.findings), "kinds": dict(kinds)}
    if as_json:
        click.echo(json.dumps(summary))
        return
    for name, value in summary.items():
        click.echo(f"{name}: {value}")


if __name__ == "__main__":
    main()
