"""What a seed makes of a world: its processes and its clients."""

from dataclasses import replace
from random import Random

from tests.simulation.world.plan import STATEFUL, Plan
from tests.simulation.world.seeds.brief import LOG_SLOWNESS, NETWORK_SLOWNESS, brief
from tests.simulation.world.seeds.long import is_long, long
from tests.simulation.world.seeds.situations import MOVING_SLOWNESS, situation_of

PACES = (1.0, 1.0, 5.0, 20.0, 20.0)
_PACE_WITH_OWNERS = 5.0
"""The highest pace of a world with owners, most of whose CPU time goes to what they say of themselves."""

_WITH_ANALYTICS = 0.3
"""Share of the worlds that have analytics."""

_REAL_STORE_EVERY, _REAL_STORE_REST = 30, 2
"""The seeds whose worlds, if they have analytics, ask a real store, which takes longer than most worlds."""

_BRIEF = 0.92
"""Share of the worlds without a situation that are brief."""

_OWNERS_EVERY, _OWNERS_RESTS = 8, (3, 6)
"""The seeds whose worlds have owners, and a standby for each shard of the roles that can have one."""

_CUT_OFF_EVERY, _CUT_OFF_REST = 10, 5
_MOVING_EVERY, _MOVING_REST = 10, 7


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed. Most worlds are brief, which finds more in the same time, and a few last hours.

    Some of the others have a slower load over a longer time, or a slow log and network.
    """
    if (situation := situation_of(seed)) is not None:
        return situation.plan
    if is_long(seed):
        return long(_usual_plan(seed), Random(f"{seed}/long plan"))
    if is_brief(seed):
        return brief(_usual_plan(seed), Random(f"{seed}/brief plan"))
    plan, slowness = _usual_plan(seed), Random(f"{seed}/slowness")
    if is_moving(seed):
        processes = {**plan.processes, "gateway": 2}
        return replace(plan, processes=processes, rate=10.0, load_s=15.0, network_slowness=MOVING_SLOWNESS)
    pace = 1.0 if is_cut_off(seed) else Random(f"{seed}/pace").choice(PACES)
    pace = min(pace, _PACE_WITH_OWNERS) if plan.has_owners else pace
    return replace(
        plan,
        pace=pace,
        rate=plan.rate / pace,
        load_s=plan.load_s * pace,
        log_slowness=slowness.choice(LOG_SLOWNESS),
        network_slowness=slowness.choice(NETWORK_SLOWNESS),
    )


def is_brief(seed: int) -> bool:
    return situation_of(seed) is None and not is_long(seed) and Random(f"{seed}/brief").random() < _BRIEF


def is_moving(seed: int) -> bool:
    """Return whether devices change gateways in the world of this seed, unless it is brief."""
    return seed % _MOVING_EVERY == _MOVING_REST


def is_cut_off(seed: int) -> bool:
    """Return whether a process is cut off from the log in the world of this seed, unless it is brief."""
    return seed % _CUT_OFF_EVERY == _CUT_OFF_REST


def _usual_plan(seed: int) -> Plan:
    """Return the plan at the usual pace. Odd seeds have small worlds, more of which run in the same time."""
    random = Random(f"{seed}/plan")
    processes = {role: random.choice((1, 1, 2)) for role in STATEFUL}
    processes |= {"gateway": random.choice((1, 2)), "edge": random.choice((1, 2))}
    if Random(f"{seed}/analytics").random() < _WITH_ANALYTICS:
        processes = {"analytics": 1, **processes}
    plan = Plan(
        partitions=random.choice((2, 4)),
        processes=processes,
        devices=random.randint(2, 8),
        rate=random.choice((0.5, 2.0, 5.0)),
        load_s=random.choice((10.0, 20.0, 40.0)),
        snapshot_s=random.choice((5, 20, 300)),
        has_ios=random.random() < 0.3,
        has_owners=seed % _OWNERS_EVERY in _OWNERS_RESTS,
        asks_real_store=seed % _REAL_STORE_EVERY == _REAL_STORE_REST,
    )
    if seed % 2 == 0:
        return plan
    size = Random(f"{seed}/size")
    plan = replace(
        plan,
        devices=size.randint(2, 5),
        rate=size.choice((1.0, 4.0, 10.0)),
        load_s=size.choice((4.0, 8.0, 15.0)),
        snapshot_s=size.choice((1, 3, 300)),
    )
    return replace(plan, load_s=15.0, snapshot_s=size.choice((1, 3))) if is_cut_off(seed) else plan
