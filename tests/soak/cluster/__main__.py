"""`python -m tests.soak.cluster`: the ledger test on several Kafka brokers and several processes of each role."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from testkit.installation.former_version import has_commit
from tests.soak.cluster.run import BROKERS, UNICASTS, ClusterVerdict, plan, run


@click.command(context_settings={"show_default": True})
@click.option("--minutes", type=click.FloatRange(0.2), default=12.0, help="How long the load lasts, at least.")
@click.option("--devices", type=click.IntRange(2), default=100, help="Android devices; up to 20 of them act at random.")
@click.option("--rate", type=click.FloatRange(0.1), default=10.0, help="Requests a second.")
@click.option("--unicasts", type=click.IntRange(1), default=UNICASTS, help="Unicasts for each broadcast or multicast.")
@click.option("--seed", type=int, default=1, help="Seed of all random choices; the same seed makes the same ones.")
@click.option("--fault", "wanted", multiple=True, help="Only faults whose names begin with this; repeatable.")
@click.option(
    "--from", "former_commit", metavar="COMMIT", help="Start with the code of this commit, and upgrade role by role."
)
@click.option("--brokers", type=click.Choice([1, BROKERS]), default=BROKERS, help="Kafka brokers. 1: no broker fails.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Keep the ledger and the data here; default: delete them."
)
def main(
    minutes: float,
    devices: int,
    rate: float,
    unicasts: int,
    seed: int,
    wanted: tuple[str, ...],
    former_commit: str | None,
    brokers: int,
    as_json: bool,
    directory: Path | None,
) -> None:
    """Send pushes while one fault follows the other, then check that none was lost or shown twice.

    Prints a row for each fault. Exit code 1: there are violations. It needs Java, Maven and HAProxy; faults of full
    disks are left out unless root runs it.
    """
    if former_commit is not None and not has_commit(former_commit):
        raise click.BadParameter(f"this clone has no commit {former_commit}; a shallow one: git fetch --unshallow")
    with tempfile.TemporaryDirectory() as temporary:
        size = plan(minutes * 60, devices, rate, seed, unicasts)
        found = asyncio.run(run(size, directory or Path(temporary), wanted, former_commit, brokers))
    if as_json:
        click.echo(json.dumps(_object(found)))
    else:
        _show(found)
    sys.exit(1 if found.verdict.violations else 0)


def _object(found: ClusterVerdict) -> dict[str, object]:
    return {
        "faults": [row._asdict() for row in found.rows],
        "errors": found.errors,
        "violations": [violation._asdict() for violation in found.verdict.violations],
        "timelines": found.verdict.timelines,
        "counts": found.verdict.counts,
    }


def _show(found: ClusterVerdict) -> None:
    console = Console(width=160)
    names = ("fault", "s", "answered", "due", "lost", "doubled", "gap s", "request s", "frame s", "errors")
    table = Table(*names, box=None)
    for row in found.rows:
        errors = ", ".join(f"{answer}: {count}" for answer, count in sorted(row.errors.items()))
        seconds = (f"{each:.2f}" for each in (row.gap_s, row.request_s, row.frame_s))
        counts = map(str, (row.answered, row.due, row.lost, row.doubled))
        table.add_row(row.fault, f"{row.seconds:.0f}", *counts, *seconds, errors or "none")
    console.print(table)
    for line in found.errors:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for name, value in found.verdict.counts.items():
        console.print(f"{name}: {value}", highlight=False, markup=False)
    for violation in found.verdict.violations:
        console.print(f"{violation.rule}: {violation.text} {list(violation.msgids)}", highlight=False, markup=False)
    for timeline in found.verdict.timelines:
        console.print(timeline, highlight=False, markup=False)
    console.print(f"{len(found.verdict.violations)} violations" if found.verdict.violations else "no violations")


if __name__ == "__main__":
    main()
