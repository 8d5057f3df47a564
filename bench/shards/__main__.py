"""Benchmark of sharding: records read and CPU time of one instance of a role, with 1 to 16 instances.

    python -m bench.shards --devices 100000

For each kind of work a log is written, and the first of N instances of a role reads it from its first record to its
end, in a process of its own. `CPU ms` and `MB` are those of that instance; `x` is the CPU time of all 16 instances
together, divided by that of a single instance that does everything: 1 where the work is divided by the instances, 16
where each does all of it. The row `reading` is the floor: a process that reads and decodes what delivery reads.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.programs import note
from bench.shards.instance import READING
from bench.shards.records import Work
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog

INSTANCES = (1, 2, 4, 8, 16)
WORK = {
    "broadcasts": ("delivery", READING),
    "multicasts": ("delivery", READING),
    "lists": ("delivery", READING),
    "unicasts": ("delivery", READING),
    "devices": ("registry", "targeting"),
    "sessions": ("registry", "targeting"),
}
"""The kinds of work, which are methods of Work, and the roles that do it."""


class InstanceCost(NamedTuple):
    """Records and bytes that the first of several instances read, and its CPU time."""

    records: int
    size: int
    cpu_ms: int


class Row(NamedTuple):
    """One role and one kind of work; `done`: how much of it the log holds. `cells`: by number of instances."""

    work: str
    role: str
    done: int
    cells: dict[int, InstanceCost]

    @property
    def together(self) -> float:
        """The CPU time of 16 instances together, divided by that of a single one."""
        return INSTANCES[-1] * self.cells[INSTANCES[-1]].cpu_ms / max(1, self.cells[1].cpu_ms)


async def write_log(work: str, path: Path, devices: int) -> int:
    """Write the log of one kind of work; return the number of its pushes, devices or connections."""
    log = SqliteLog(path, TOPICS)
    try:
        count = await getattr(Work(log, devices), work)()
        assert isinstance(count, int)
        return count
    finally:
        await log.close()


def measure(role: str, instances: int, path: Path) -> InstanceCost:
    """Let the first of `instances` instances of a role read the log; return its cost."""
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        command = [sys.executable, "-m", "bench.shards.instance", role, "0", str(instances), str(path), directory]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return InstanceCost(*map(int, done.stdout.split()))


def rows(devices: int, wanted: list[str]) -> list[Row]:
    found = []
    for work in wanted:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "events.db"
            count = asyncio.run(write_log(work, path, devices))
            for role in WORK[work]:
                found.append(Row(work, role, count, {each: measure(role, each, path) for each in INSTANCES}))
                note(f"{work} {role}: {found[-1].together:.1f}")
    return found


def table_of(found: list[Row]) -> Table:
    numbers = [f"{heading} {each}" for each in INSTANCES for heading in ("CPU ms", "MB")]
    table = Table("work", "role", "done", *numbers, "x", box=None)
    for row in found:
        cells = [f for each in row.cells.values() for f in (f"{each.cpu_ms:,}", f"{each.size / 1e6:.2f}")]
        table.add_row(row.work, row.role, f"{row.done:,}", *cells, f"{row.together:.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--work", nargs="*", choices=sorted(WORK), default=list(WORK))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = rows(options.devices, options.work)
    if options.json:
        print(json.dumps([row._asdict() | {"x": row.together} for row in found]))
    else:
        Console(width=160).print(table_of(found))


if __name__ == "__main__":
    main()
