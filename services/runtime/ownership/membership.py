"""Membership of a process in its role: it says in the log that it is alive, and learns when it has to own its shard."""

import asyncio
import contextlib
import secrets
from pathlib import Path

from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact, InstanceLeft
from protos.runtime.v1.log_pb2 import Meta
from services.runtime.errors import BusyError, UnavailableError
from services.runtime.log.port import Log, NewRecord
from services.runtime.ownership.directory import INSTANCES_TOPIC, InstanceDirectory
from services.runtime.process import background
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger

INTERVAL_S = 0.5
"""How often an instance says that it is alive."""

_LAST_RECORD_S = 2.0


class Membership:
    """Service of one instance, which starts before the follower and stops after it; see Turns for the follower's part.

    An instance that stops says so, and a standby takes over at once. One that is killed or cut off is absent after
    ABSENT_AFTER intervals.
    """

    name = "membership"

    def __init__(
        self, log: Log, clock: Clock, role: str, shard: int, address: str, place: str, interval_s: float = INTERVAL_S
    ) -> None:
        self._id = secrets.token_hex(8)
        self._log = log
        self._clock = clock
        self._role = role
        self._interval_s = interval_s
        self._alive = InstanceAlive(role=role, shard=shard, address=address, place=place)
        self._directory = InstanceDirectory(self._id)
        self._news = asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
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

    async def wait(self) -> None:
        while not self._directory.is_own_turn():
            await self._directory.change.wait()

    def begin(self, epoch: int) -> None:
        self._tell(caught_up=True, epoch=epoch)

    def end(self) -> None:
        self._tell(caught_up=False, epoch=0)

    def _tell(self, *, caught_up: bool, epoch: int) -> None:
        self._alive.caught_up, self._alive.epoch = caught_up, epoch
        self._news.set()

    async def _append(self, *, alive: InstanceAlive | None = None, left: InstanceLeft | None = None) -> None:
        meta = Meta(event_id=secrets.token_bytes(16), time_ms=self._clock.now_ms(), writer=self._role)
        fact = InstanceFact(meta=meta, instance=self._id, alive=alive, left=left)
        try:
            await self._log.append([NewRecord(INSTANCES_TOPIC, 0, self._id.encode(), fact.SerializeToString())])
        except (BusyError, UnavailableError) as error:
            logger.warning("the log does not accept that this instance is alive", role=self._role, error=str(error))


def place_of(directory: Path) -> str:
    """Return the name of the directory's place, chosen at random when it was first asked for.

    A file that was left empty, by a kill or a full disk, is written again: "" would be no place at all.
    """
    file = directory / "place"
    place = file.read_text(encoding="ascii") if file.exists() else ""
    if not place:
        directory.mkdir(parents=True, exist_ok=True)
        place = secrets.token_hex(8)
        file.write_text(place, encoding="ascii")
    return place
