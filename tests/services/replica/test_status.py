"""`carillon status`: the states of processes, from their records in the log."""

from carillon.commands.status import InstanceStatus, OffsetFact, instance_statuses
from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact, InstanceLeft
from protos.runtime.v1.log_pb2 import Meta

_NOW_MS = 100_000


def alive_fact(
    instance: str, at_ms: int = _NOW_MS, *, shard: int = 0, caught_up: bool = True, epoch: int = 0
) -> InstanceFact:
    alive = InstanceAlive(
        role="r", shard=shard, address=f"{instance}:1", caught_up=caught_up, epoch=epoch, owner_since_ms=40_000
    )
    return InstanceFact(meta=Meta(time_ms=at_ms), instance=instance, alive=alive)


def test_each_shard_is_shown_with_its_owner_first() -> None:
    facts = [
        alive_fact("a"),
        alive_fact("b", epoch=7),
        alive_fact("c", caught_up=False),
        alive_fact("d", 90_000, epoch=6),
        alive_fact("e", shard=1),
        alive_fact("f"),
        InstanceFact(meta=Meta(time_ms=_NOW_MS), instance="f", left=InstanceLeft()),
    ]
    facts[1].alive.caught_up_offset = 1001
    impossible = alive_fact("g", epoch=8)
    impossible.alive.caught_up_offset = 2000
    given = [OffsetFact(offset, fact) for offset, fact in enumerate([*facts, impossible], 1000)]
    assert instance_statuses(given, _NOW_MS) == [
        InstanceStatus("r", 0, "owner", "b:1", 7, "1970-01-01T00:00:40+00:00", 0.0),
        InstanceStatus("r", 0, "silent", "d:1", None, None, 10.0),
        InstanceStatus("r", 0, "standby", "a:1", None, None, 0.0),
        InstanceStatus("r", 0, "starting", "c:1", None, None, 0.0),
        InstanceStatus("r", 1, "standby", "e:1", None, None, 0.0),
    ]


def test_processes_of_before_a_restore_are_not_listed() -> None:
    """The restored log says of nobody that it has left. A process in the place of a dead one shows that it is dead."""
    facts = [
        alive_fact("long ago", _NOW_MS - 601_000, epoch=1),
        alive_fact("killed", _NOW_MS - 60_000),
        alive_fact("replaced", _NOW_MS - 60_000),
        alive_fact("new"),
    ]
    facts[2].alive.address = facts[3].alive.address
    given = [OffsetFact(offset, fact) for offset, fact in enumerate(facts, 1000)]
    found = instance_statuses(given, _NOW_MS)
    assert sorted((each.address, each.state) for each in found) == [("killed:1", "silent"), ("new:1", "standby")]
