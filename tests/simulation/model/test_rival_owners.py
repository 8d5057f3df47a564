"""Two processes that own one shard at the same time are found, unless something explains it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact, InstanceLeft
from services.domain.topics import TOPICS
from services.log.port import NewRecord, Partition
from services.replica.instances import INSTANCES_TOPIC
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.process import Process
from tests.simulation.kernel.world import World
from tests.simulation.model.rival_owners import RivalOwners

_FINDING = "second has taken over delivery-0 at 0.000 s from first, which runs"


class _Shard:
    """Two processes of one shard. `compacts`: the log removes each record as soon as a later one replaces it."""

    def __init__(self, directory: Path, *, compacts: bool = False) -> None:
        world = World(0, directory)
        behaviour = Behaviour(world.random("log"))
        behaviour.compacts = lambda: compacts  # type: ignore[method-assign]
        self.rivals = RivalOwners(world.note_stored, world.loop.time, lambda: self._broker)
        self._broker = Broker(TOPICS, 1, behaviour, self.rivals.note)
        self.first, self.second = world.process("first"), world.process("second")

    def announce(self, process: Process, epoch: int) -> None:
        alive = InstanceAlive(role="delivery", shard=0, caught_up=True, epoch=epoch)
        self._store(process, InstanceFact(instance=process.name, alive=alive))

    def leave(self, process: Process) -> None:
        self._store(process, InstanceFact(instance=process.name, left=InstanceLeft()))

    def found(self, faults: Sequence[Fault] = (), log_slowness: int = 1, healed_s: float = float("inf")) -> list[str]:
        return list(self.rivals.found(faults, log_slowness, healed_s))

    def _store(self, process: Process, fact: InstanceFact) -> None:
        new_record = NewRecord(INSTANCES_TOPIC, 0, process.name.encode(), fact.SerializeToString())
        process.context().run(self._broker.store, Partition(INSTANCES_TOPIC, 0), [new_record])


def test_an_owner_that_runs_is_not_overtaken(tmp_path: Path) -> None:
    shard = _Shard(tmp_path)
    shard.announce(shard.first, 1)
    shard.announce(shard.second, 0)
    assert shard.found() == []
    shard.announce(shard.second, 2)
    shard.announce(shard.second, 2)
    assert shard.found() == [_FINDING]


@pytest.mark.parametrize(
    ("fault", "is_excuse"),
    [
        (Fault(0.0, "pause", "delivery-0", 5.0), True),
        (Fault(0.0, "log_cut_off", "delivery-0b", 5.0), True),
        (Fault(0.0, "log_faults", "registry-0", 5.0), True),
        (Fault(-5.0, "pause", "delivery-0", 4.0), True),
        (Fault(-9.0, "pause", "delivery-0", 4.0), False),
        (Fault(-9.0, "log_unavailable", "", 4.0), False),
        (Fault(1.0, "pause", "delivery-0", 5.0), False),
        (Fault(0.0, "pause", "delivery-1", 5.0), False),
        (Fault(0.0, "log_cut_off", "registry-0", 5.0), False),
        (Fault(0.0, "kill", "delivery-0b", 5.0), False),
    ],
)
def test_only_what_delays_records_of_the_shard_at_that_time_explains_two_owners(
    tmp_path: Path, fault: Fault, is_excuse: bool
) -> None:
    shard = _Shard(tmp_path)
    shard.announce(shard.first, 1)
    shard.announce(shard.second, 2)
    assert shard.found([fault]) == ([] if is_excuse else [_FINDING])
    assert shard.found(log_slowness=10) == []


def test_a_fault_ends_when_all_are_healed_but_for_a_pause(tmp_path: Path) -> None:
    shard = _Shard(tmp_path)
    shard.announce(shard.first, 1)
    shard.announce(shard.second, 2)
    fault = Fault(-9.0, "log_cut_off", "delivery-0", 90.0)
    assert shard.found([fault], healed_s=-1.0) == []
    assert shard.found([fault], healed_s=-5.0) == [_FINDING]
    assert shard.found([fault], healed_s=-10.0) == [_FINDING]
    pause = Fault(-9.0, "pause", "delivery-0", 90.0)
    assert shard.found([pause], healed_s=-5.0) == []
    assert shard.found([pause], healed_s=-10.0) == [_FINDING], "it never happened"


def test_an_owner_that_has_ended_or_stands_by_has_a_successor(tmp_path: Path) -> None:
    shard = _Shard(tmp_path)
    shard.announce(shard.first, 1)
    shard.announce(shard.first, 0)
    shard.announce(shard.second, 2)
    shard.leave(shard.second)
    shard.announce(shard.first, 3)
    shard.first.kill()
    shard.announce(shard.second, 4)
    assert shard.found() == []


def test_a_record_that_was_removed_at_once_cannot_be_known(tmp_path: Path) -> None:
    shard = _Shard(tmp_path, compacts=True)
    shard.announce(shard.first, 0)
    shard.announce(shard.first, 1)
    shard.announce(shard.second, 2)
    assert shard.found() == []
