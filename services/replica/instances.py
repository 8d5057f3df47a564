"""The instances of the roles and the owner of each shard, folded from the topic `instances` and followed.

Nothing here depends on a clock. An instance counts its own records that lie in the log behind the last one of another
instance: after ABSENT_AFTER of them the other one counts as ended. So no instance counts as ended while the log answers
none of them, and an instance that was paused itself reads the others' records before its next own one.

Of a shard's present instances, the one with the highest epoch is the owner. A former owner that was paused may not know
of it yet. So an owner answers calls only for LEASE_INTERVALS after a record of its own, and these are over before it
counts as ended for others.

A process that only calls others has no records of its own to count. For it an instance counts as ended when another one
of its shard has written ABSENT_AFTER records behind its last one. So a record that nobody repeats, such as a forged
one, displaces an owner for some seconds at most, whatever its epoch.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact
from services.log.port import LOG_UNAVAILABLE, Log, Partition
from services.process.retries import retry_until_available
from services.replica.dead_letters import UNUSABLE, leave_out
from services.replica.epochs import check_count

ABSENT_AFTER = 5
"""Own records behind another instance's last one, after which the other instance counts as ended. Only records
without news count, because they are written at regular intervals."""

LEASE_INTERVALS = ABSENT_AFTER - 2
"""For how many intervals after it began to append its latest record an owner may answer calls. For others it counts as
ended after ABSENT_AFTER - 1 of their intervals at the earliest."""


_REPEATED = 100
"""Latest own records that are known, because the log may store one twice."""


MAX_INSTANCES = 4096
"""Instances that are remembered although they have not said that they ended. Beyond it the one that has been silent for
longest is forgotten: thousands of others have written since."""


MAX_ENDED = 1000
"""Ended instances that are remembered, because a record that one was appending as it ended may come after its end."""


@dataclass(slots=True)
class Instance:
    """An instance and its latest announcement; `missed` counts the records since then that each witness repeated.

    `caught_up_offset`: that of the first record to say that it has caught up, as far as the observer knows.
    """

    id: str
    alive: InstanceAlive
    caught_up_offset: int
    missed: Counter[str] = field(default_factory=Counter)

    @property
    def is_present(self) -> bool:
        return max(self.missed.values(), default=0) < ABSENT_AFTER


class Instances:
    """The instances as one observer sees them. `own` is its instance id; "" for a process that only calls others."""

    def __init__(self, own: str = "") -> None:
        self._own = own
        self._own_records: deque[bytes] = deque(maxlen=_REPEATED)
        self._instances: dict[str, Instance] = {}  # in the order of their latest records
        self._by_shard: dict[tuple[str, int], dict[str, Instance]] = {}
        self._ended: dict[str, int] = {}
        self._is_superseded = False

    def apply(self, fact: InstanceFact, offset: int = 0) -> None:
        """Apply the record with this offset. ValueError: no instance can have written it.

        An ended instance that writes ABSENT_AFTER further records counts again: another process recorded its end.
        """
        _check(fact, offset)
        if fact.WhichOneof("fact") == "alive" and fact.instance in self._ended:
            self._ended[fact.instance] += 1
            if self._ended[fact.instance] >= ABSENT_AFTER:
                del self._ended[fact.instance]
        match fact.WhichOneof("fact"):
            case "alive" if fact.instance == self._own:
                if fact.meta.event_id not in self._own_records:
                    self._own_records.append(fact.meta.event_id)
                    self._apply_own(fact.alive, offset)
            case "alive" if fact.instance not in self._ended:
                self._apply_alive(fact.instance, fact.alive, offset)
            case "left":
                self._end(fact.instance)
            case _:
                pass

    @property
    def is_superseded(self) -> bool:
        """Whether another instance has taken over from the observer, and the observer has not said since that it
        stands by."""
        return self._is_superseded

    def owner(self, role: str, shard: int) -> Instance | None:
        """Return the instance that owns the shard: the present one with the highest epoch."""
        owners = [each for each in self._of(role, shard) if each.alive.epoch and each.is_present]
        return max(owners, key=lambda each: each.alive.epoch, default=None)

    def standbys(self, role: str, shard: int) -> list[Instance]:
        """Return the instances that are present, have caught up and do not own the shard, in the order of taking over.

        The first is the one that caught up first. So an instance that starts cannot take over from a standby that has
        been elected, but has not announced it yet.
        """
        standbys = [e for e in self._of(role, shard) if e.is_present and e.alive.caught_up and not e.alive.epoch]
        return sorted(standbys, key=lambda each: (each.caught_up_offset, each.id))

    def all(self) -> list[Instance]:
        """Return all instances that have not ended as far as is known."""
        return list(self._instances.values())

    def is_elected(self) -> bool:
        """Return whether the observer owns its shard, or is first in turn while no owner is present."""
        own = self._instances.get(self._own)
        if own is None or self._is_superseded:
            return False
        role, shard = own.alive.role, own.alive.shard
        owner = self.owner(role, shard)
        if owner is not None:
            return owner is own
        return self.standbys(role, shard)[:1] == [own]

    def has_announced(self, epoch: int) -> bool:
        """Return whether the observer's latest record names this epoch."""
        own = self._instances.get(self._own)
        return own is not None and own.alive.epoch == epoch

    @property
    def is_sole_owner(self) -> bool:
        """Whether the observer owns its shard, and no former owner is present any more that does not know it.

        A former owner says that it stands by as soon as it has read of a higher epoch.
        """
        own = self._instances.get(self._own)
        if own is None or not own.alive.epoch or self._is_superseded:
            return False
        others = (each for each in self._of(own.alive.role, own.alive.shard) if each is not own)
        return not any(each.alive.epoch and each.is_present for each in others)

    def _apply_alive(self, instance: str, alive: InstanceAlive, offset: int) -> None:
        former = self._forget(instance)
        if not alive.caught_up_offset and former and former.alive.caught_up:
            offset = former.caught_up_offset
        latest = Instance(instance, alive, alive.caught_up_offset or offset)
        self._instances[instance] = latest
        self._by_shard.setdefault((alive.role, alive.shard), {})[instance] = latest
        if len(self._instances) > MAX_INSTANCES:
            self._forget(next(each for each in self._instances if each != self._own))
        if not self._own and former and former.alive == alive:
            self._count(latest, self._of(alive.role, alive.shard))
        own = self._instances.get(self._own)
        if own and (own.alive.role, own.alive.shard) == (alive.role, alive.shard):
            self._is_superseded |= 0 < own.alive.epoch < alive.epoch
        if former is None and alive.place:
            for each in self._of(alive.role, alive.shard):
                if each.id != instance and each.alive.place == alive.place:
                    self._end(each.id)

    def _apply_own(self, alive: InstanceAlive, offset: int) -> None:
        former = self._instances.get(self._own)
        self._apply_alive(self._own, alive, offset)
        others = [each for each in self._of(alive.role, alive.shard) if each.id != self._own and each.is_present]
        later = any(each.alive.epoch > alive.epoch for each in others)
        self._is_superseded = alive.epoch > 0 and (self._is_superseded or later)
        if former is not None and former.alive == alive:
            self._count(self._instances[self._own], self._instances.values())

    def _count(self, witness: Instance, instances: Iterable[Instance]) -> None:
        """Note that the witness has repeated its record behind the last ones of these instances."""
        for each in instances:
            if each is not witness:
                each.missed[witness.id] += 1

    def _end(self, instance: str) -> None:
        self._forget(instance)
        self._ended[instance] = 0
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _forget(self, instance: str) -> Instance | None:
        """Remove an instance, and return what was known of it."""
        former = self._instances.pop(instance, None)
        if former is not None:
            shard = former.alive.role, former.alive.shard
            del self._by_shard[shard][instance]
            if not self._by_shard[shard]:
                del self._by_shard[shard]
        return former

    def _of(self, role: str, shard: int) -> Sequence[Instance]:
        """Return the instances of a shard, in the order of their latest records."""
        return list(self._by_shard.get((role, shard), {}).values())


def _check(fact: InstanceFact, offset: int) -> None:
    """Check that an instance can have written the record with this offset. ValueError: none can."""
    check_count(fact.alive.epoch, offset)
    if fact.alive.caught_up_offset > offset:
        raise ValueError(f"an instance that caught up at offset {fact.alive.caught_up_offset}, behind its own record")


# Follows the topic `instances`, so that callers find the owner of a shard.

INSTANCES_TOPIC = "instances"
_PARTITION = Partition(INSTANCES_TOPIC, 0)

RECENT_RECORDS = 2_000
"""Number of latest records that a start reads. Instances that are present soon write further ones."""

CALLERS_PAUSE_S = 0.25
"""Pause between two reads of a process that only calls others. All instances write at short intervals: without pauses
the reads of an installation would grow with the square of its processes."""


class InstanceDirectory:
    """The instances by their records in the log. `run` follows the log; the directory is empty before."""

    def __init__(
        self,
        own: str = "",
        on_record: Callable[[InstanceFact, int], None] = lambda fact, offset: None,
        pause_s: float = CALLERS_PAUSE_S,
    ) -> None:
        """`on_record` is called with each record and its offset, once it is applied. `pause_s`: after each read."""
        self.instances = Instances(own)
        self._on_record = on_record
        self._pause_s = pause_s
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._urgent = asyncio.Event()
        self._urgent_waits = 0

    @property
    def change(self) -> asyncio.Event:
        """An event that the next record sets. Get it before reading `instances`, then wait for it."""
        return self._changed

    def address(self, role: str, shard: int) -> str | None:
        """Return where the owner of the shard takes calls; None where no owner is known."""
        owner = self.owner(role, shard)
        return owner.alive.address if owner else None

    def owner(self, role: str, shard: int) -> Instance | None:
        return self.instances.owner(role, shard)

    async def run(self, log: Log, on_start: Callable[[], None] = lambda: None) -> None:
        """Follow the log until cancelled; call `on_start` once the reader is open."""
        end = (await retry_until_available(LOG_UNAVAILABLE, lambda: log.ends([_PARTITION])))[_PARTITION]
        start = {_PARTITION: max(0, end - RECENT_RECORDS)}
        reader = await retry_until_available(LOG_UNAVAILABLE, lambda: log.open(start))
        try:
            on_start()
            while True:
                for record in await retry_until_available(LOG_UNAVAILABLE, reader.read):
                    try:
                        fact = InstanceFact.FromString(record.value)
                        self.instances.apply(fact, record.offset)
                    except UNUSABLE as error:
                        leave_out(INSTANCES_TOPIC, record, error)
                        continue
                    self._on_record(fact, record.offset)
                self.note_change()
                await _wait(self._urgent, self._pause_s)
        finally:
            await reader.close()

    async def wait_urgently(self, change: asyncio.Event, seconds: float | None = None) -> None:
        """Wait for the change, at most `seconds`; meanwhile records are read without pauses."""
        self._urgent_waits += 1
        self._urgent.set()
        try:
            await _wait(change, seconds)
        finally:
            self._urgent_waits -= 1
            if not self._urgent_waits:
                self._urgent.clear()

    def note_change(self) -> None:
        """Wake all waits for the next record, and call the listeners: `instances` has been changed."""
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever `instances` has been changed."""
        self._listeners.append(listener)


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class OwnerOfShard:
    """The owner of one shard, looked up in a directory. Without a directory the owner is never known."""

    def __init__(self, directory: InstanceDirectory | None, role: str, shard: int) -> None:
        self._directory = directory
        self._role = role
        self.shard = shard

    @property
    def id(self) -> str | None:
        """The id of the instance that owns the shard; None where no owner is known."""
        owner = self._directory.owner(self._role, self.shard) if self._directory else None
        return owner.id if owner else None

    @property
    def address(self) -> str | None:
        """Where the owner takes calls; None where no owner is known."""
        return self._directory.address(self._role, self.shard) if self._directory else None

    async def wait_other(self, known: str | None, *, urgently: bool = False) -> None:
        """Return once an owner other than the instance of this id is known.

        The wait is urgent, as `wait_urgently` says, if the caller says so or while no owner is known.
        """
        while self._directory is not None:
            change = self._directory.change
            if (owner := self.id) not in (None, known):
                return
            if urgently or owner is None:
                await self._directory.wait_urgently(change)
            else:
                await change.wait()
        await asyncio.Event().wait()
