"""Which instances of the roles there are, folded from the topic `instances`, and which of them own partitions.

Nothing here depends on a clock. An instance counts its own records that lie in the log behind the last one of another
instance: after ABSENT_AFTER of them the other one is taken for ended. So while the log answers nobody, nobody is, and
an instance that was paused itself sees the others' records before its next own one.
"""

from dataclasses import dataclass

from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact

ABSENT_AFTER = 5
"""Own records behind another instance's last one, after which the other instance counts as ended."""


MAX_ENDED = 1000
"""Ended instances that are remembered, because what one was appending as it ended may come after its end."""


@dataclass(slots=True)
class Instance:
    """What an instance has said last; `missed` counts the observer's own records since then."""

    id: str
    alive: InstanceAlive
    missed: int = 0

    @property
    def is_present(self) -> bool:
        return self.missed < ABSENT_AFTER


class Instances:
    """The instances as one observer sees them. `own` is its instance id; "" for a process that only calls others."""

    def __init__(self, own: str = "") -> None:
        self._own = own
        self._instances: dict[str, Instance] = {}
        self._ended: dict[str, None] = {}

    def apply(self, fact: InstanceFact) -> None:
        match fact.WhichOneof("fact"):
            case "alive" if fact.instance not in self._ended:
                self._apply_alive(fact.instance, fact.alive)
            case "left":
                self._end(fact.instance)
            case _:
                pass

    def owner(self, role: str, shard: int) -> Instance | None:
        """Return the instance that owns the shard's partitions under the highest epoch, if it is present."""
        owners = [each for each in self._of(role, shard) if each.alive.epoch]
        latest = max(owners, key=lambda each: each.alive.epoch, default=None)
        return latest if latest and latest.is_present else None

    def is_own_turn(self) -> bool:
        """Return whether the observer owns its shard, or has to take over: there is no owner, and no earlier standby.

        The earliest standby is the one with the lowest id among those that are present and have caught up.
        """
        own = self._instances.get(self._own)
        if own is None:
            return False
        owner = self.owner(own.alive.role, own.alive.shard)
        if owner is not None:
            return owner is own
        standbys = [e.id for e in self._of(own.alive.role, own.alive.shard) if e.is_present and e.alive.caught_up]
        return min(standbys, default="") == self._own

    def _apply_alive(self, instance: str, alive: InstanceAlive) -> None:
        is_new = instance not in self._instances
        self._instances[instance] = Instance(instance, alive)
        if is_new and alive.place:
            for each in self._of(alive.role, alive.shard):
                if each.id != instance and each.alive.place == alive.place:
                    self._end(each.id)
        if instance == self._own:
            for each in self._instances.values():
                each.missed += each.id != instance

    def _end(self, instance: str) -> None:
        self._instances.pop(instance, None)
        self._ended[instance] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _of(self, role: str, shard: int) -> list[Instance]:
        return [each for each in self._instances.values() if (each.alive.role, each.alive.shard) == (role, shard)]
