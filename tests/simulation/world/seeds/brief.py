"""Brief worlds: few processes and clients, a load of a few seconds, and few faults."""

from dataclasses import replace
from random import Random

from tests.simulation.world.plan import Plan

LOG_SLOWNESS = (1, 1, 1, 10, 30)
NETWORK_SLOWNESS = (1, 1, 1, 5)
"""How many times longer than usual the log and the network take; one is drawn for each world."""

_KEPT = 0.5
"""Share of the worlds that keep what they have of analytics, iOS devices and owners."""


def brief(plan: Plan, random: Random) -> Plan:
    """Return the plan of a brief world: one instance of each role, or two of one."""
    twice = random.choice((*plan.processes, *[""] * len(plan.processes)))
    kept = [role for role in plan.processes if role != "analytics" or random.random() < _KEPT]
    return replace(
        plan,
        partitions=2,
        processes={role: 1 + (role == twice != "analytics") for role in kept},
        devices=random.randint(1, 3),
        rate=random.choice((1.0, 4.0, 10.0)),
        load_s=random.choice((1.0, 2.0, 4.0)),
        snapshot_s=random.choice((1, 3, 300)),
        pace=random.choice((0.1, 0.2, 0.5)),
        has_ios=plan.has_ios and random.random() < _KEPT,
        has_owners=plan.has_owners and random.random() < _KEPT,
        log_slowness=random.choice(LOG_SLOWNESS),
        network_slowness=random.choice(NETWORK_SLOWNESS),
    )
