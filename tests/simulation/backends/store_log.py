"""`python -m tests.simulation.backends.store_log VERSION`: stores the log that this version writes, as a release does.

The log is that of a world without faults, in which all commands are carried out. It begins an hour before other worlds.
"""

import os
import sys
import tempfile
from itertools import count
from pathlib import Path
from unittest.mock import patch

import click

from tests.simulation.backends.earlier_logs import PARTITIONS, store
from tests.simulation.backends.plan import plan_of
from tests.simulation.backends.situations import situation_of
from tests.simulation.backends.world import Backends
from tests.simulation.kernel import clock
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.world import World

_EARLIER_MS = 3_600_000
_LOAD_S, _RATE = 12.0, 2.0


def written_now() -> Broker:
    """Return the log of a small world without faults."""
    seed = next(seed for seed in count() if _is_suitable(seed))
    brokers: list[Broker] = []
    with tempfile.TemporaryDirectory() as directory, patch.object(clock, "START_MS", clock.START_MS - _EARLIER_MS):
        World(seed, Path(directory)).run(lambda world: Backends(on_end=brokers.append).run(world, []))
    return brokers[0]


def _is_suitable(seed: int) -> bool:
    plan = plan_of(seed)
    is_small = (plan.partitions, plan.load_s, plan.rate, plan.slowness) == (PARTITIONS, _LOAD_S, _RATE, 1)
    return is_small and situation_of(seed) is None and not plan.has_owners and not plan.begins_with


@click.command()
@click.argument("version")
def main(version: str) -> None:
    """Store the log that this version writes as that of the release VERSION, whose log must not be stored yet."""
    broker = written_now()
    records = [record for partition in broker.partitions_stored() for record in broker.records(partition)]
    click.echo(f"{len(records)} records, {store(version, records)} bytes")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the log is the same each time then
        command = [sys.executable, "-m", "tests.simulation.backends.store_log", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    main()
