"""Mended worlds: worlds that once found a defect, with their plans of then; today their seeds give other worlds.

`python -m tests.simulation.mended NAME` runs one. Exit code 1: it finds something.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import click

from services.process.crashpoint import Point
from tests.simulation.backends.plan import Plan as RolesPlan
from tests.simulation.backends.world import Backends
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.running import Kind, run_world, run_worlds
from tests.simulation.world.plan import Plan
from tests.simulation.world.run import InstallationWorld
from tests.soak.pushes import Mixture


class MendedWorld(NamedTuple):
    """A stored world; `found`: the defect that it once found."""

    found: str
    kind: Kind
    seed: int
    faults: list[Fault]


def _roles(
    *,
    registry: int = 1,
    targeting: int = 1,
    scheduling: int = 1,
    delivery: int = 1,
    partitions: int = 4,
    load_s: float = 12.0,
    rate: float = 2.0,
    snapshot_s: int,
    slowness: int = 1,
) -> RolesPlan:
    """Return the plan of a world of roles, with so many instances of each."""
    shards = {"registry": registry, "targeting": targeting, "scheduling": scheduling, "delivery": delivery}
    return RolesPlan(shards, partitions, load_s, rate, snapshot_s, slowness)


_TWO_GATEWAYS = {"registry": 1, "targeting": 1, "scheduling": 1, "delivery": 1, "gateway": 2, "edge": 1}
"""The instances of each role in worlds of an installation with two gateways and one of each other role."""


def _installation(processes: Mapping[str, int], **fields: Any) -> InstallationWorld:
    """Return the kind of world with two partitions, and one process of each role and two gateways or `processes`."""
    return InstallationWorld(Plan(partitions=2, processes={**_TWO_GATEWAYS, **processes}, **fields))


def _two_gateways(**fields: Any) -> InstallationWorld:
    """Return the kind of world with two gateways, two partitions, and these fields of the plan."""
    return _installation({}, has_ios=False, **fields)


def _brief(others: Mapping[str, int], pace: float = 0.2, **fields: Any) -> InstallationWorld:
    """Return the kind of world that lasts seconds, of one process of each role and `others`, with these fields."""
    mixture = Mixture(unicasts=1, speeds=(5, 50, 1000), short_s=(1, 3), delay_s=(1, 6))
    processes = {**others, **_TWO_GATEWAYS, "gateway": 1, **others}  # the order is part of the plan: it changes a world
    return InstallationWorld(Plan(partitions=2, processes=processes, pace=pace, mixture=mixture, **fields))


MENDED: Mapping[str, MendedWorld] = {
    "expired-at-its-start": MendedWorld(
        "pushes never started when one expired as its attempt began",
        Backends(plan=_roles(registry=2, targeting=2, scheduling=2, partitions=2, snapshot_s=1, slowness=8)),
        44,
        [
            Fault(2.015, "pause", "targeting-0", 0.449),
            Fault(5.596, "cut_power", "scheduling-1"),
            Fault(6.352, "pause", "registry-1", 0.687),
        ],
    ),
    "paused-targeting": MendedWorld(
        "while one instance of targeting was paused, pushes started 20 s late in the partitions of the other one",
        Backends(plan=_roles(targeting=2, scheduling=2, load_s=60.0, snapshot_s=20)),
        163,
        [
            Fault(16.756, "log_faults", "targeting-0", 22.425),
            Fault(20.623, "pause", "targeting-0", 118.667),
            Fault(24.286, "block", "targeting-0", 0.275, "scheduling-1"),
            Fault(44.6, "kill_after_steps", "targeting-0", 2298.0),
            Fault(45.781, "pause", "targeting-0", 5.925),
        ],
    ),
    "paused-targeting-after-kills": MendedWorld(
        "as paused-targeting, after delivery had been killed",
        Backends(plan=_roles(registry=2, targeting=2, rate=0.5, snapshot_s=2)),
        176,
        [
            Fault(1.339, "kill", "delivery-0"),
            Fault(6.577, "kill_after_steps", "targeting-0", 1553.0),
            Fault(10.896, "pause", "targeting-1", 53.37),
        ],
    ),
    "stopped-after-its-successor": MendedWorld(
        "an owner of scheduling that stopped after another one had taken over logged an error",
        Backends(
            plan=replace(
                _roles(registry=2, targeting=2, scheduling=2, partitions=2, load_s=8.0, rate=4.0, snapshot_s=1),
                has_owners=True,
                standbys=["delivery-0b", "registry-0b", "scheduling-1b", "targeting-0b", "targeting-1b"],
            )
        ),
        278,
        [Fault(4.239, "pause", "scheduling-0", 1.97), Fault(7.574, "pause", "scheduling-0", 6.964)],
    ),
    "standbys-that-start-together": MendedWorld(
        "of two processes of a shard that started together the second overtook the first, which had just been elected",
        Backends(
            plan=replace(
                _roles(partitions=2, load_s=3.0, rate=4.0, snapshot_s=2),
                has_owners=True,
                standbys=["delivery-0b", "targeting-0b"],
            )
        ),
        310006,
        [Fault(2.9, "archive", amount=4.0)],
    ),
    "replaced-while-read": MendedWorld(
        "targeting counted as caught up without a device whose record had been replaced while it read the topic",
        Backends(plan=_roles(registry=2, scheduling=2, delivery=2, partitions=2, load_s=20.0, rate=4.0, snapshot_s=2)),
        511292,
        [Fault(4.993, "rebuild", "targeting-0", 15.0)],
    ),
    "late-hello": MendedWorld(
        "a late hello of a connection that the device had given up replaced the present one",
        _installation(
            {"registry": 2, "delivery": 2, "gateway": 1, "edge": 2},
            devices=4,
            rate=2.0,
            load_s=20.0,
            snapshot_s=20,
            has_ios=False,
        ),
        192,
        [Fault(7.817, "kill_after_steps", "delivery-1", 1391.0), Fault(9.118, "reset_connections")],
    ),
    "refused-before-its-claim": MendedWorld(
        "a request repeated under its idempotency key was refused, because its token had been removed, and was sent",
        _installation(
            {"edge": 2, "gateway": 1},
            devices=3,
            rate=10.0,
            load_s=4.0,
            snapshot_s=3,
            has_ios=True,
            pace=0.5,
            log_slowness=30,
            network_slowness=5,
        ),
        1009,
        [Fault(0.035265745805418636, "log_faults", "gateway-0", 8.0)],
    ),
    "held-up-request": MendedWorld(
        "a request that was held up in one gateway was carried out after later ones through another",
        _two_gateways(devices=8, rate=5.0, load_s=10.0, snapshot_s=300),
        100104,
        [
            Fault(6.056, "pause", "gateway-0", 24.616),
            Fault(7.917, "kill_at_point", "registry-0", other="command-appended"),
        ],
    ),
    "connected-once-more": MendedWorld(
        "a device that connected twice to another gateway got messages again that it had acknowledged before",
        _two_gateways(devices=3, rate=10.0, load_s=10.0, snapshot_s=1, network_slowness=13),
        410604,
        [Fault(at_s, "lose_connections") for at_s in (0.75, 1.179, 3.978, 5.397, 6.379, 7.792)],
    ),
    "write-while-stopping": MendedWorld(
        "a process of scheduling that another one superseded began a write after its state was closed",
        _two_gateways(devices=3, rate=10.0, load_s=2.0, snapshot_s=3, pace=0.1, log_slowness=10),
        410671,
        [
            Fault(0.668, "log_half_cut_off", "targeting-0", 8.0, "230"),
            Fault(0.963, "revoke_key"),
            Fault(1.297, "run_second", "scheduling-0", 8.0),
            Fault(1.678, "kill_at_append", "registry-0", 1.0),
            Fault(1.919, "kill_at_append", "gateway-1", 1.0),
        ],
    ),
    "closed-after-the-newer-one": MendedWorld(
        "a gateway ended when a draining connection closed after the newer one of its device",
        _two_gateways(devices=4, rate=10.0, load_s=10.0, snapshot_s=300, network_slowness=13),
        52134,
        [Fault(at_s, "lose_connections") for at_s in (1.080952675973298, 1.730949322110591, 3.033756770334816)],
    ),
    "second-process-at-the-end": MendedWorld(
        "the simulation expected no failed request while two processes of one instance took over from each other",
        _brief({"analytics": 1}, devices=1, rate=1.0, load_s=1.0, snapshot_s=3, has_ios=False),
        426363,
        [
            Fault(0.5507530640353028, "log_faults", "edge-0", 0.6994772430901359),
            Fault(0.610407990042169, "lose_connections"),
            Fault(0.8092557879385497, "run_second", "scheduling-0", 8.0),
            Fault(0.8913100401441706, "log_faults", "delivery-0", 7.444924310791661),
        ],
    ),
    "refused-while-under-way": MendedWorld(
        "the checks took a push for refused whose first request was still under way when its repetition was refused",
        _brief({}, devices=3, rate=10.0, load_s=2.0, snapshot_s=300, has_ios=True, log_slowness=10),
        427520,
        [Fault(1.4335870821972956, "log_unavailable", "gateway-0", 0.5926974338115857)],
    ),
    "facts-after-removed-records": MendedWorld(
        "accounts took facts back that were in the log, as it could not read the records before them any more",
        Backends(
            plan=RolesPlan(
                {"registry": 1, "targeting": 2, "scheduling": 1, "delivery": 1, "accounts": 1},
                partitions=2,
                load_s=3.0,
                rate=4.0,
                snapshot_s=20,
                slowness=1,
                has_owners=True,
                standbys=["delivery-0b", "registry-0b", "scheduling-0b", "targeting-0b", "targeting-1b"],
            )
        ),
        544330,
        [
            Fault(0.6757003818449279, "log_faults", "scheduling-0b", 1.078462080044028),
            Fault(1.625965801808063, "lose_disk", "scheduling-0"),
            Fault(1.6870386595102678, "log_trimmed", "", 12),
        ],
    ),
    "session-before-its-device": MendedWorld(
        "a registry that stood by lost the activity of a device whose session it had read before the device",
        _brief({"registry": 2}, 0.5, devices=3, rate=1.0, load_s=2.0, snapshot_s=3, has_ios=False, has_owners=True),
        438659,
        [
            Fault(0.2899851106714859, "restart", "registry-0", 1),
            Fault(0.5754290589409112, "restart", "scheduling-0", 1),
            Fault(0.7541218275565427, "upgrade", "registry-1"),
            Fault(0.7986220108123017, "kill", "targeting-0b"),
            Fault(0.8869216366589809, "archive", amount=0.2, other=Point.SEGMENT_WRITTEN),
        ],
    ),
    "clock-behind": MendedWorld(
        "a push with an idempotency key waited until the clock of scheduling reached the time of the edge's",
        _two_gateways(devices=3, rate=10.0, load_s=6.0, snapshot_s=300, pace=0.1),
        600098,
        [Fault(1.0, "set_clock", "scheduling-0", -20.0)],
    ),
    "replaced-by-a-dead-one": MendedWorld(
        "a device was told to stop for a dead connection to a gateway whose clock was ahead, after delivery's restart",
        _two_gateways(devices=1, rate=1.0, load_s=1.0, snapshot_s=1, pace=0.5),
        420968,
        [
            Fault(0.04623283345081919, "kill_at_append", "delivery-0"),
            Fault(0.3423028159749646, "kill_at_append", "gateway-1"),
            Fault(0.8459239428584545, "kill_at_append", "gateway-0"),
            Fault(0.9198977007845739, "set_clock", "gateway-1", -5.0),
            Fault(0.9852614874112013, "lose_connections"),
        ],
    ),
    "hung-edge": MendedWorld(
        "an edge that hung for longer than a key counts sent a request that its client had repeated elsewhere",
        _installation(
            {"edge": 2, "gateway": 1}, devices=2, rate=2.0, load_s=8.0, snapshot_s=300, has_ios=False, pace=0.5
        ),
        422308,
        [Fault(1.0, "pause", "edge-1", 700.0)],
    ),
}


@click.command()
@click.argument("name", type=click.Choice(list(MENDED)))
def main(name: str) -> None:
    """Run the world of this NAME, and print what it finds."""
    world = MENDED[name]
    (outcome,) = run_worlds([partial(run_world, world.kind, world.seed, world.faults)])
    for finding in outcome.findings:
        click.echo(finding)
    sys.exit(1 if outcome.findings else 0)


if __name__ == "__main__":
    main()
