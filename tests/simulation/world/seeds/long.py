"""Long worlds: hours in which little happens, so that times to live, timed tasks, leases and snapshots come due."""

from dataclasses import replace
from random import Random

from tests.simulation.world.plan import Plan
from tests.soak.pushes import Mixture

_EVERY, _REST = 60, 28
_HOURS = (1, 2, 6)
_HOUR_S = 3600.0
_MIXTURE = Mixture(short_s=(60, 3600), delay_s=(60, 900))


def is_long(seed: int) -> bool:
    """Return whether the world of this seed lasts hours."""
    return seed % _EVERY == _REST


def long(plan: Plan, random: Random) -> Plan:
    """Return the plan with as many requests as before, over hours.

    It has no owners, because most CPU time would go to what they say of themselves.
    """
    load_s = random.choice(_HOURS) * _HOUR_S
    longer = load_s / plan.load_s
    return replace(
        plan,
        pace=longer,
        rate=plan.rate / longer,
        load_s=load_s,
        mixture=_MIXTURE,
        snapshot_s=random.choice((60, 300)),
        has_owners=False,
    )
