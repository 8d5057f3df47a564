"""Situations that random faults seldom make, each in a small world of its own: one in ten seeds has one."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.installation import process_name
from tests.simulation.world.plan import STATEFUL, Plan

MOVING_SLOWNESS = 13
"""How many times longer the network takes where devices change gateways: acknowledgements reach delivery slowly."""

_EVERY, _REST = 10, 4
_MOVES = 6
_KILLS, _BETWEEN_KILLS_S = 3, 4.0
_SLOW_LOG = 30


class Situation(NamedTuple):
    """The plan and the faults of a world."""

    plan: Plan
    faults: Sequence[Fault]


def situation_of(seed: int) -> Situation | None:
    """Return the situation of a seed; None for other worlds."""
    if seed % _EVERY != _REST:
        return None
    random = Random(f"{seed}/situation")
    return random.choice((_moving, _killed_before_append))(random)


def _moving(random: Random) -> Situation:
    """Devices change gateways, of themselves and because all lose their connections, and nothing else fails.

    So of a message that one gateway has heard acknowledged, delivery may learn after it has learnt that the device is
    connected to the other gateway.
    """
    plan = _plan(random, gateways=2, load_s=10.0, network_slowness=MOVING_SLOWNESS)
    return Situation(plan, lost_connections(random, plan))


def _killed_before_append(random: Random) -> Situation:
    """Delivery is killed several times as it appends, where the log takes long, and all devices lose their connections
    before it is there again.

    So of what a gateway has heard acknowledged, delivery may know only what the gateway tells it again.
    """
    plan = _plan(random, gateways=1, load_s=_KILLS * _BETWEEN_KILLS_S, log_slowness=_SLOW_LOG)
    faults = []
    for number in range(_KILLS):
        at_s = number * _BETWEEN_KILLS_S + random.uniform(0.5, 1.5)
        faults.append(Fault(at_s, "kill_at_append", process_name("delivery", 0)))
        faults.append(Fault(at_s + random.uniform(0.3, 0.8), "lose_connections"))
    return Situation(plan, faults)


def lost_connections(random: Random, plan: Plan) -> Sequence[Fault]:
    """Take all devices off the network several times."""
    moves = [Fault(random.uniform(0, plan.load_s), "lose_connections") for _ in range(_MOVES)]
    return sorted(moves, key=lambda fault: fault.at_s)


def _plan(random: Random, *, gateways: int, load_s: float, log_slowness: int = 1, network_slowness: int = 1) -> Plan:
    return Plan(
        partitions=2,
        processes={**dict.fromkeys(STATEFUL, 1), "gateway": gateways, "edge": 1},
        devices=random.randint(2, 4),
        rate=10.0,
        load_s=load_s,
        snapshot_s=random.choice((1, 3, 300)),
        has_ios=False,
        log_slowness=log_slowness,
        network_slowness=network_slowness,
    )
