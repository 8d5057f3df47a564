"""Worlds whose messages are handed over: browsers come and go, their push service has trouble, delivery is killed."""

from random import Random

from services.process.crashpoint import Point
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.installation import process_name
from tests.simulation.world.browsers import TROUBLE
from tests.simulation.world.plan import STATEFUL, Plan
from tests.simulation.world.run import InstallationWorld

PLAN = Plan(
    partitions=2,
    processes=dict.fromkeys((*STATEFUL, "gateway", "edge"), 1),
    devices=3,
    rate=4.0,
    load_s=25.0,
    snapshot_s=4,
    has_ios=False,
    has_browsers=True,
)
_KNOWN_S = 11.0
"""Time after which delivery knows the first addresses."""

_DELIVERY = process_name("delivery", 0)
_POINTS = [point for point in Point if point.startswith(("service", "outcomes", "push", "snapshot"))]


class HandOverWorld(InstallationWorld):
    """The kind of world in which hand-overs meet their faults; see running.Kind."""

    def __init__(self) -> None:
        super().__init__(PLAN)

    def faults(self, seed: int) -> list[Fault]:
        """Return one or two troubles of the push service, some kills of delivery, and perhaps a fault of devices."""
        random = Random(f"{seed}/hand-overs")
        faults = [_trouble(random) for _ in range(random.choice((1, 1, 2)))]
        faults += [_kill(random) for _ in range(random.choice((0, 1, 1, 2, 3)))]
        if random.random() < 0.3:
            kind = random.choice(("reset_connections", "lose_connections", "pause_app"))
            faults.append(Fault(_at_s(random), kind, amount=3.0))
        return sorted(faults, key=lambda fault: fault.at_s)


def _at_s(random: Random) -> float:
    return random.uniform(_KNOWN_S, PLAN.load_s)


def _trouble(random: Random) -> Fault:
    return Fault(_at_s(random), "push_service_trouble", "", random.uniform(2, 10), random.choice(TROUBLE))


def _kill(random: Random) -> Fault:
    """Return a kill of delivery at any of its awaits, at a crash point, or before or after its next append."""
    kind = random.choice(("kill_after_steps", "kill_after_steps", "kill_at_point", "kill_at_append"))
    amount = {"kill_after_steps": random.randrange(300), "kill_at_append": random.randrange(2)}.get(kind, 0)
    other = str(random.choice(_POINTS)) if kind == "kill_at_point" else ""
    return Fault(_at_s(random), kind, _DELIVERY, float(amount), other)
