"""Situations that random faults seldom cause, each in a world of its own. Three seeds in ten have one."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from services.domain.topics import DEVICE_COMMANDS, DEVICES
from services.log.port import Partition
from services.process.crashpoint import Point
from services.replica.instances import INSTANCES_TOPIC
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.installation import process_name, standby_name
from tests.simulation.kernel.log.halves import is_in_half

_EVERY, _REST = 5, 2
_SUCCESSION_EVERY, _SUCCESSION_REST = 10, 9
_REBUILD_S = 15.0
_SPLIT_S = 15.0
_TASK_POINTS = ("task-due", "task-fell-due", "task-sending", "task-sent")


@dataclass(frozen=True)
class Situation:
    """The particulars of such a world. `tasks_due_s`: when after the start of the load all tasks fall due, if set.

    `has_few_devices`: each client registers one device, and changes it all the more often. `has_owners`: all roles have
    owners, and each of their shards a standby.
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
        random = Random(f"{seed}/situation")
        return random.choice((_succession, _split, _split, _late_facts))(random)
    if seed % _EVERY != _REST:
        return None
    random = Random(f"{seed}/situation")
    return random.choice((_due_at_once, _rebuild, _targeting_away, _decided_again))(random)


def _due_at_once(random: Random) -> Situation:
    """All tasks fall due within some ms, and none later; the process that sends them may be killed then."""
    shards, due_s = random.choice((1, 2)), 6.0
    target, point = process_name("scheduling", random.randrange(shards)), random.choice(_TASK_POINTS)
    fault = Fault(random.uniform(0, due_s - 1), "kill_at_point", target, other=point)
    return Situation({"scheduling": shards}, due_s + 3, 2.0, random.choice(((), (fault,))), due_s)


def _rebuild(random: Random) -> Situation:
    """An instance rebuilds its state from the log while other roles call it."""
    role, shards = random.choice(("registry", "targeting")), random.choice((1, 2))
    target = process_name(role, random.randrange(shards))
    return Situation({role: shards}, 20.0, 4.0, [Fault(random.uniform(3, 6), "rebuild", target, _REBUILD_S)])


def _targeting_away(random: Random) -> Situation:
    """One of two instances of targeting does not answer, because it is down or hangs."""
    target, kind = process_name("targeting", random.randrange(2)), random.choice(("down", "pause"))
    return Situation({"targeting": 2}, 12.0, 2.0, [Fault(random.uniform(1, 3), kind, target, random.uniform(20, 40))])


def _decided_again(random: Random) -> Situation:
    """A registry restarts behind many commands, and is killed when the log has their facts and its files do not.

    Its first appends announce its epochs, so it is killed later, when it has appended the facts that it decided.
    """
    shards = random.choice((1, 2))
    target, at_s, down_s = process_name("registry", random.randrange(shards)), random.uniform(2, 4), 20.0
    killed = Fault(at_s + 1, "kill_at_point", target, other=Point.FOLLOWER_APPENDED)
    faults = [Fault(at_s, "down", target, down_s), killed]
    return Situation({"registry": shards}, 30.0, 4.0, faults, has_few_devices=True)


def _split(random: Random) -> Situation:
    """One of two processes and some of their callers cannot read of a new owner; the other process may leave.

    So callers that do not know of the successor call the former owner.
    """
    role = random.choice(("scheduling", "targeting", "targeting"))
    both = [process_name(role, 0), standby_name(role, 0)]
    random.shuffle(both)
    kind, half = random.choice(("log_cut_off", "log_half_cut_off")), _half_with_instances(random)
    faults = [Fault(4.0, kind, both[0], _SPLIT_S, half if kind == "log_half_cut_off" else "")]
    callers = [process_name(each, 0) for each in ("registry", "delivery")]
    faults += [Fault(4.0, "log_half_cut_off", each, _SPLIT_S, half) for each in callers if random.random() < 0.7]
    leaving = Fault(random.uniform(4, 12), random.choice(("restart", "kill")), both[1], 60.0)
    return Situation({role: 1}, 22.0, 6.0, [*faults, *random.choice(((), (leaving,)))], has_owners=True)


def _late_facts(random: Random) -> Situation:
    """An owner of the registry reads commands and cannot append its facts until the other process has taken over.

    So it appends them after the successor's facts, which follow from later commands to the same devices. A restart of
    the other process has made it the owner. No later command may follow: its facts would hide the late ones.
    """
    both = [process_name("registry", 0), standby_name("registry", 0)]
    random.shuffle(both)
    while is_in_half(half := _half_with_instances(random), Partition(DEVICE_COMMANDS.name, 0)) or not is_in_half(
        half, Partition(DEVICES.name, 0)
    ):
        pass
    faults = [Fault(1.0, "restart", both[1], 60.0), Fault(5.0, "log_half_cut_off", both[0], 10.0, half)]
    return Situation({"registry": 1}, 12.0, 8.0, faults, has_few_devices=True, has_owners=True)


def _half_with_instances(random: Random) -> str:
    """Return the name of a half of the log's partitions that contains the partition of topic `instances`."""
    while not is_in_half(half := str(random.randrange(1000)), Partition(INSTANCES_TOPIC, 0)):
        pass
    return half


def _succession(random: Random) -> Situation:
    """Owner, standby or both read half of the log slowly; then one leaves or hangs.

    So a process that is behind takes over, or one comes back that does not know of its successor.
    """
    role = random.choice(("scheduling", "targeting"))
    both = [process_name(role, 0), standby_name(role, 0)]
    random.shuffle(both)
    half, slow_hosts = str(random.randrange(1000)), random.choice((both, both[:1], both[1:]))
    slow = [Fault(2.0, "slow_reads", target, 20.0, half) for target in slow_hosts]
    kind, amount_s = random.choice((("restart", 60.0), ("restart", 60.0), ("pause", random.uniform(3, 6))))
    leaving = [
        Fault(at_s + random.random(), kind, target, amount_s) for at_s, target in zip((5, 12), both, strict=True)
    ]
    return Situation({role: 1}, 20.0, 6.0, [*slow, *leaving], has_owners=True)
