"""A world in which every process of an installation restarts in order; no app server and no device may notice it."""

from dataclasses import replace
from functools import partial

from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.running import Outcome, run_world, run_worlds
from tests.simulation.world.plan import EVERY_ROLE, Plan
from tests.simulation.world.run import InstallationWorld
from tests.soak.pushes import Mixture

_SHARED = ("gateway", "edge")
"""Roles of which two processes run beside each other; of the other roles an owner and its standby do, or one."""

_ACTING, _SNAPSHOT_S, _STOPS_WITHIN_S, _PACE = 20, 30, 30.0, 5.0


def restarts(devices: int, rate: float, pause_s: float, seed: int) -> Outcome:
    """Run a world in which all processes stop and start again, one every `pause_s` seconds.

    `devices` are connected, of which twenty act at random, and app servers make `rate` requests a second. A finding:
    a request failed or took over a second, or one of the rules of all worlds is broken.
    """
    plan = Plan(
        partitions=4,
        processes={role: 2 if role in _SHARED else 1 for role in EVERY_ROLE},
        devices=_ACTING,
        steady=max(0, devices - _ACTING),
        rate=rate,
        mixture=Mixture(unicasts=300),
        load_s=0.0,
        snapshot_s=_SNAPSHOT_S,
        has_ios=False,
        has_owners=True,
        pace=_PACE,
        is_smooth=True,
    )
    faults = [Fault(pause_s * (1 + n), "restart", host, _STOPS_WITHIN_S) for n, host in enumerate(plan.hosts)]
    plan = replace(plan, load_s=pause_s * (len(faults) + 2))
    (outcome,) = run_worlds([partial(run_world, InstallationWorld(plan), seed, faults)])
    return outcome
