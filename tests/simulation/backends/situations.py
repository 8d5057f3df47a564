"""Situations that random faults seldom make, each in a world of its own: one in four seeds has one."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.installation import process_name, standby_name

_EVERY, _REST = 5, 2
_SUCCESSION_EVERY, _SUCCESSION_REST = 20, 9
_REBUILD_S = 15.0
_TASK_POINTS = ("task-due", "task-fell-due", "task-sending", "task-sent")


@dataclass(frozen=True)
class Situation:
    """What is particular in the world. `tasks_due_s`: when after the start of the load all tasks fall due, if set.

    `has_few_devices`: each client registers one device, and changes it all the more often. `has_owners`: scheduling and
    targeting have owners, and each of their shards a standby.
    """

    shards: dict[str, int]
    load_s: float
    rate: float
    faults: Sequence[Fault] = ()
    tasks_due_s: float | None = None
    has_few_devices: bool = False
    has_owners: bool = False


def situation_of(seed: int) -> Situation | None:
    """Return the situation of a seed; None for ordinary worlds."""
    if seed % _SUCCESSION_EVERY == _SUCCESSION_REST:
        return _succession(Random(f"{seed}/situation"))
    if seed % _EVERY != _REST:
        return None
    random = Random(f"{seed}/situation")
    return random.choice((_due_at_once, _rebuild, _targeting_away, _decided_again))(random)


def _due_at_once(random: Random) -> Situation:
    """All tasks fall due within some ms; the process that sends them may be killed then. None comes later."""
    shards, due_s = random.choice((1, 2)), 6.0
    target, point = process_name("scheduling", random.randrange(shards)), random.choice(_TASK_POINTS)
    fault = Fault(random.uniform(0, due_s - 1), "kill_at_point", target, other=point)
    return Situation({"scheduling": shards}, due_s + 3, 2.0, random.choice(((), (fault,))), due_s)


def _rebuild(random: Random) -> Situation:
    """An instance reads the log again while the others have questions for it."""
    role, shards = random.choice(("registry", "targeting")), random.choice((1, 2))
    target = process_name(role, random.randrange(shards))
    return Situation({role: shards}, 20.0, 4.0, [Fault(random.uniform(3, 6), "rebuild", target, _REBUILD_S)])


def _targeting_away(random: Random) -> Situation:
    """One of two instances of targeting does not answer, because it is down or hangs."""
    target, kind = process_name("targeting", random.randrange(2)), random.choice(("down", "pause"))
    return Situation({"targeting": 2}, 12.0, 2.0, [Fault(random.uniform(1, 3), kind, target, random.uniform(20, 40))])


def _decided_again(random: Random) -> Situation:
    """A registry comes back to many commands, and is killed when the log has their facts and its files do not."""
    shards = random.choice((1, 2))
    target, at_s, down_s = process_name("registry", random.randrange(shards)), random.uniform(2, 4), 20.0
    faults = [Fault(at_s, "down", target, down_s), Fault(at_s + 1, "kill_at_append", target, 1.0)]
    return Situation({"registry": shards}, 30.0, 4.0, faults, has_few_devices=True)


def _succession(random: Random) -> Situation:
    """Owner and standby read the log slowly; then the owner leaves, so that one that is behind takes over at once."""
    role = random.choice(("scheduling", "targeting"))
    both = [process_name(role, 0), standby_name(role, 0)]
    random.shuffle(both)
    slow = [Fault(2.0, "slow_reads", target, 20.0) for target in both]
    leaving = [
        Fault(at_s + random.random(), "restart", target, 60.0) for at_s, target in zip((5, 12), both, strict=True)
    ]
    return Situation({role: 1}, 20.0, 6.0, [*slow, *leaving], has_owners=True)
