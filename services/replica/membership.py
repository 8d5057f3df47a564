"""Membership of a process in its role: it announces in the log that it is alive, and learns when it is elected."""

import asyncio
import contextlib
import math
import secrets
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact, InstanceLeft
from protos.runtime.v1.log_pb2 import Meta
from services.errors import BusyError, UnavailableError
from services.log.monitored import LogAgeElsewhere
from services.log.port import Log, NewRecord
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import OWNER, OWNER_EPOCH, OWNER_SINCE, STANDBYS
from services.replica.instances import INSTANCES_TOPIC, LEASE_INTERVALS, Instance, InstanceDirectory

STATE_DIRECTORY_ID_FILE = "place"
"""The file in a state's directory that holds its `state_directory_id`."""

RENEWAL_INTERVAL_S = 0.5
"""Interval at which an instance announces that it is alive."""

_PAUSE_S = 0.1
"""Pause between two reads of the instances; shorter where the interval is short."""

_LAST_RECORD_S = 2.0

_ASK_S = 0.5
"""Time for which the answers of other processes, whether the log serves them, are used again, seconds."""

_UNREAD = 100
"""Upper bound of the own records that are recognised when they are read; an instance writes two a second."""


class Membership:
    """Service that announces one instance in the log, and its follower's OwnerElection. It stops after the follower.

    An instance that stops announces that too, and a standby takes over at once. One that is killed or cut off counts as
    ended after ABSENT_AFTER intervals.
    """

    name = "membership"

    def __init__(
        self,
        log: Log,
        clock: Clock,
        role: str,
        shard: int,
        address: str,
        directory_id: str,
        interval_s: float = RENEWAL_INTERVAL_S,
        log_age_elsewhere: LogAgeElsewhere | None = None,
    ) -> None:
        """`log_age_elsewhere` asks other processes when the log served them, once this one is no longer confirmed."""
        self._id = secrets.token_hex(8)
        self._log = log
        self._clock = clock
        self._role = role
        self._interval_s = interval_s
        self._alive = InstanceAlive(role=role, shard=shard, address=address, place=directory_id)
        self._directory = InstanceDirectory(self._id, self._note, min(_PAUSE_S, interval_s / 5))
        self._news = asyncio.Event()
        self._begun_s: dict[bytes, float] = {}
        self._caught_up_records: deque[bytes] = deque(maxlen=_UNREAD)
        self._lease_s = 0.0
        self._own_offset = 0
        self._is_owner = False
        self._log_age_elsewhere = log_age_elsewhere
        self._asking = asyncio.Lock()
        self._asked_s = -math.inf
        self._was_log_away = False

    async def run(self, ready: asyncio.Event) -> None:
        labels = self._role, str(self._alive.shard)
        STANDBYS.labels(*labels).set_function(lambda: len(self._standbys()))
        following = background.start_endless("instances", self._directory.run(self._log, ready.set))
        try:
            await ready.wait()
            while True:
                self._news.clear()
                await self._append(alive=self._alive)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._news.wait()
        finally:
            following.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_RECORD_S):
                    await self._append(left=InstanceLeft())

    def note_caught_up(self) -> None:
        self._tell(caught_up=True, epoch=0)

    async def wait_elected(self) -> None:
        instances = self._directory.instances
        # An instance that lags behind the log may see itself as the owner until it has read that it stands by. If it
        # took over then, compaction might remove that record, and it would count itself as superseded for ever.
        while not (instances.has_announced(0) and instances.is_elected()):
            await self._directory.change.wait()

    def new_epoch(self) -> int:
        """Return an epoch above those of all former owners: the order of the instances' records in the log.

        An instance takes over after it has read a record of its own behind the owner's last one.
        """
        return self._own_offset + 1

    async def announce(self, epoch: int) -> None:
        self._alive.owner_since_ms = self._clock.now_ms()
        self._tell(caught_up=True, epoch=epoch)
        while not self._directory.instances.has_announced(epoch):
            await self._directory.wait_urgently(self._directory.change)

    async def wait_alone(self) -> bool:
        instances = self._directory.instances
        while not (instances.is_sole_owner or instances.is_superseded):
            await self._directory.wait_urgently(self._directory.change)
        if instances.is_superseded:
            return False
        self._report(self._alive.epoch)
        return True

    async def wait_superseded(self) -> None:
        while not self._directory.instances.is_superseded:
            await self._directory.change.wait()

    @property
    def is_confirmed(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return now_s < self._lease_s and not self._directory.instances.is_superseded

    async def is_log_away(self) -> bool:
        """Return whether the log has accepted no record of the other roles, asked at most twice a second, since this
        instance's lease ended. A successor must have appended one.
        """
        if self._log_age_elsewhere is None:
            return False
        loop = asyncio.get_running_loop()
        async with self._asking:
            if loop.time() >= self._asked_s + _ASK_S:
                age_ms = await self._log_age_elsewhere()
                self._asked_s = loop.time()
                over_ms = (self._asked_s - self._lease_s) * 1000
                self._was_log_away = age_ms is not None and over_ms < age_ms < math.inf
        return self._was_log_away and not self._directory.instances.is_superseded

    def end(self) -> None:
        self._alive.owner_since_ms = 0
        self._tell(caught_up=False, epoch=0)
        self._report(0)

    def _tell(self, *, caught_up: bool, epoch: int) -> None:
        self._alive.caught_up, self._alive.epoch = caught_up, epoch
        if not caught_up:
            self._alive.caught_up_offset = 0
            self._caught_up_records.clear()
        self._news.set()

    def _standbys(self) -> Sequence[Instance]:
        return self._directory.instances.standbys(self._role, self._alive.shard)

    def _report(self, epoch: int) -> None:
        """Tell operators under which epoch this process owns its partitions, 0 for none."""
        role, shard, is_owner = self._role, self._alive.shard, epoch > 0
        labels = role, str(shard)
        OWNER.labels(*labels).set(is_owner)
        OWNER_EPOCH.labels(*labels).set(epoch)
        OWNER_SINCE.labels(*labels).set(self._alive.owner_since_ms / 1000)
        if is_owner:
            standbys = len(self._standbys())
            logger.info("owns its partitions from now on", role=role, shard=shard, epoch=epoch, standbys=standbys)
        elif self._is_owner:
            logger.info("does not own its partitions any more", role=role, shard=shard)
        self._is_owner = is_owner

    def _note(self, fact: InstanceFact, offset: int) -> None:
        """Extend the lease by each record of this process, from the moment at which its append began.

        `caught_up_offset` is that of the first record read which was appended since the process last caught up.
        """
        if fact.instance == self._id:
            self._own_offset = offset
            if fact.meta.event_id in self._caught_up_records and not self._alive.caught_up_offset:
                self._alive.caught_up_offset = offset
            begun_s = self._begun_s.pop(fact.meta.event_id, None)
            if begun_s is not None:
                self._lease_s = max(self._lease_s, begun_s + LEASE_INTERVALS * self._interval_s)

    async def _append(self, *, alive: InstanceAlive | None = None, left: InstanceLeft | None = None) -> None:
        meta = Meta(event_id=secrets.token_bytes(16), time_ms=self._clock.now_ms(), writer=self._role)
        fact = InstanceFact(meta=meta, instance=self._id, alive=alive, left=left)
        now_s = asyncio.get_running_loop().time()
        expired_s = now_s - LEASE_INTERVALS * self._interval_s
        self._begun_s = {each: begun_s for each, begun_s in self._begun_s.items() if begun_s > expired_s}
        self._begun_s[meta.event_id] = now_s
        if fact.alive.caught_up:
            self._caught_up_records.append(meta.event_id)
        try:
            await self._log.append([NewRecord(INSTANCES_TOPIC, 0, self._id.encode(), fact.SerializeToString())])
        except (BusyError, UnavailableError) as error:
            logger.warning(
                "this instance could not announce in the log that it is alive", role=self._role, error=str(error)
            )


def state_directory_id(directory: Path) -> str:
    """Return the id of the state directory, stored in it and chosen at random the first time.

    An empty file, left by a kill or a full disk, is written again.
    """
    file = directory / STATE_DIRECTORY_ID_FILE
    found = file.read_text(encoding="ascii") if file.exists() else ""
    if not found:
        directory.mkdir(parents=True, exist_ok=True)
        found = secrets.token_hex(8)
        file.write_text(found, encoding="ascii")
    return found
