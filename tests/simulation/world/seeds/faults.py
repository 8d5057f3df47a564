"""What a seed makes of a world: its faults."""

from random import Random

from tests.simulation.kernel.fault_lists import (
    brief_faults,
    fewer_steps,
    lengthened,
    owner_faults,
    power_faults,
    rare_faults,
    shortened,
    split_faults,
    swarm_faults,
)
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.installation import process_name
from tests.simulation.kernel.log.old_record_faults import archive_faults, is_losing, loss_faults
from tests.simulation.world.apple import random_trouble
from tests.simulation.world.plan import CLIENT_FAULTS, STATEFUL, Plan
from tests.simulation.world.seeds.long import is_long
from tests.simulation.world.seeds.plans import PACES, is_brief, is_cut_off, is_moving, plan_of
from tests.simulation.world.seeds.situations import lost_connections, situation_of

_COUNTS = (0, 1, 2, 4, 8)
_STORE_FAULTS = ("store_away", "store_fails")
_OPERATOR_FAULTS = ("pause_app", "rotate_secret", "revoke_key")
_LEFT_OUT = frozenset({"set_clock"})
"""A kind of fault that `more_faults` makes."""

_ARCHIVED = 0.25
"""Share of the worlds with faults in which old records are archived."""

_CLOCKS_SET_BACK = 0.1
"""Share of the worlds with faults in which clocks of delivery are set back."""

_BRIEF_CALM = 0.1
"""Share of the brief worlds that have no fault."""

_CALM = 0.6
"""Share of the worlds without random faults that have no fault at all."""

_CUT_OFF_S = 8.0
_SPLIT = 0.4


def faults_of(seed: int) -> list[Fault]:
    """Return the faults of a seed, of which one in eleven has none. They begin with the load."""
    if (situation := situation_of(seed)) is not None:
        return list(situation.faults)
    plan, random = plan_of(seed), Random(f"{seed}/faults")
    if is_brief(seed):
        return _brief_faults(seed, plan)
    if is_moving(seed):
        return list(lost_connections(random, plan))
    if is_cut_off(seed):
        return cut_off_and_killed(random, plan)
    count = random.choice(_COUNTS) * (2 if plan.pace == max(PACES) else 1)
    if count == 0 and random.random() < _CALM:
        return []
    faults = [
        *swarm_faults(random, plan, plan.hosts, count, _LEFT_OUT),
        *more_faults(seed, plan),
        *clock_faults(seed, plan),
        *analytics_faults(seed, plan),
        *power_faults(seed, plan),
    ]
    faults += loss_faults(Random(f"{seed}/losses"), plan, faults) if is_losing(seed) else []
    if plan.has_owners:
        changes = Random(f"{seed}/owners")
        faults += owner_faults(changes, plan, changes.choice((0, 1, 2, 4)))
        faults += split_faults(changes, plan) if changes.random() < _SPLIT else []
    if count and random.random() < 0.5:
        faults.append(client_fault(random, plan))
    faults = [lengthened(fault, plan.pace) for fault in faults] if is_long(seed) else faults
    return sorted(faults, key=lambda fault: fault.at_s)


def _brief_faults(seed: int, plan: Plan) -> list[Fault]:
    random = Random(f"{seed}/brief faults")
    if random.random() < _BRIEF_CALM:
        return []
    faults = [*brief_faults(random, plan, _LEFT_OUT), *power_faults(seed, plan)]
    if plan.has_owners:
        faults += map(fewer_steps, owner_faults(random, plan, random.choice((1, 2))))
    others = [*more_faults(seed, plan), *clock_faults(seed, plan), *analytics_faults(seed, plan)]
    others += [client_fault(random, plan)]
    faults += map(shortened, random.sample(others, min(len(others), random.choice((0, 0, 1, 2)))))
    faults += loss_faults(Random(f"{seed}/losses"), plan, faults) if is_losing(seed) else []
    return sorted(faults, key=lambda fault: fault.at_s)


def client_fault(random: Random, plan: Plan) -> Fault:
    """Return a fault of the devices' connections, over which they may read nothing for up to a minute."""
    at_s, kind = random.uniform(0, plan.load_s), random.choice(CLIENT_FAULTS)
    return Fault(at_s, kind, amount=random.choice((2, 10, 60)) * random.random() if kind == "stop_reading" else 0.0)


def cut_off_and_killed(random: Random, plan: Plan) -> list[Fault]:
    """Cut a process off from the log for some seconds, then kill it: nothing that it has confirmed may be lost."""
    role = random.choice(("edge", "delivery"))
    target, at_s = process_name(role, random.randrange(plan.processes[role])), random.uniform(1, 5)
    return [
        Fault(at_s, "log_cut_off", target, _CUT_OFF_S),
        Fault(at_s + random.uniform(1, _CUT_OFF_S - 1), "kill", target),
    ]


def more_faults(seed: int, plan: Plan) -> list[Fault]:
    """Return further faults of a seed: of clocks and disks, upgrades, and changes by an operator."""
    random = Random(f"{seed}/more faults")
    faults = rare_faults(random, plan, random.choice((0, 0, 1, 2)))
    for _ in range(random.choice((0, 0, 1, 2))):
        at_s, kind = random.uniform(0, plan.load_s), random.choice(_OPERATOR_FAULTS)
        faults.append(Fault(at_s, kind, amount=random.uniform(1, 20) if kind == "pause_app" else 0.0))
    for _ in range(random.choice((0, 1, 2)) if plan.has_ios else 0):
        faults.append(Fault(random.uniform(0, plan.load_s), random_trouble(random), amount=random.uniform(1, 20)))
    if random.random() < 0.1 and not plan.has_owners:
        faults.append(Fault(random.uniform(0, plan.load_s), "run_second", "scheduling-0", random.uniform(1, 20)))
    if random.random() < 0.2:
        role, others = random.choice(STATEFUL), (1, 2)
        faults.append(Fault(random.uniform(0, plan.load_s), "reshard", role, float(random.choice(others))))
    if random.random() < _ARCHIVED:
        faults += archive_faults(random, plan)
    return faults


def analytics_faults(seed: int, plan: Plan) -> list[Fault]:
    """Return faults of the analytics store, and of the process that fills it, in a world that has them."""
    random = Random(f"{seed}/analytics faults")
    if "analytics" not in plan.processes:
        return []
    of_store = [
        Fault(random.uniform(0, plan.load_s), kind, amount=random.choice((1, 10, 30)) * (0.5 + random.random()))
        for kind in random.choices(_STORE_FAULTS, k=random.choice((0, 1, 2)))
    ]
    host = [process_name("analytics", 0)]
    return of_store + swarm_faults(random, plan, host, random.choice((0, 1, 2, 4)), _LEFT_OUT)


def clock_faults(seed: int, plan: Plan) -> list[Fault]:
    """Return, in one seed of ten, faults that set the clock of one process back, mostly of delivery, and kill it.

    Restarted processes of delivery fold records with times that go back.
    """
    random = Random(f"{seed}/clocks")
    if random.random() >= _CLOCKS_SET_BACK:
        return []
    target = process_name("delivery", random.randrange(plan.processes["delivery"]))
    target = random.choice((target, random.choice(plan.hosts)))
    changes = [
        Fault(random.uniform(0, plan.load_s), "set_clock", target, random.choice((-60.0, -20.0)))
        for _ in range(random.choice((1, 2)))
    ]
    return [*changes, *(Fault(random.uniform(0, plan.load_s), "kill", target) for _ in range(3))]
