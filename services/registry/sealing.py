"""What switches the sealing of personal values on: a call, or the first start of an installation.

A service has Kafka forget the former keys.
"""

import asyncio

from protos.registry.v1.apps_pb2 import AppChanged, AppFact, Sealing
from protos.registry.v1.registry_pb2 import (
    NoteKeysCopiedRequest,
    NoteKeysCopiedResponse,
    SealRequest,
    SealResponse,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import COPIED_KEY, OUTDATED, SEALING_KEY
from services.domain.person_key_topic import SEGMENT_AFTER_MS, TopicKeys
from services.domain.role import RoleContext
from services.domain.sealing_switch import sealing_fact
from services.domain.topics import DEVICE_COMMANDS, LOG_INS, PUSH_COMMANDS, TASK_COMMANDS
from services.errors import ConflictError, UnavailableError
from services.log.port import Partition
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.registry.key_rotation import ChangeQueue
from services.registry.pauses import WriteChange
from services.registry.tenure import RegistryTenure
from services.replica.tenure import Tenure


class SealingSwitch:
    """Makes the keys of persons, and then has every process seal; each step may be repeated after a kill."""

    def __init__(self, context: RoleContext, changes: ChangeQueue, write_change: WriteChange) -> None:
        self._apps = context.apps
        self._persons = context.persons
        self._now_ms = context.clock.now_ms
        self._changes = changes
        self._write_change = write_change

    async def seal(self, request: SealRequest) -> SealResponse:
        """Make the keys if there are none; unless the request is for these alone, seal from now on.

        ConflictError: this process can make no keys, because it has none to wrap them with.
        """
        return await self._changes.make(lambda: self._seal(request))

    async def note_copied(self, request: NoteKeysCopiedRequest) -> NoteKeysCopiedResponse:
        """Note that the keys were copied now."""
        return await self._changes.make(lambda: self._note_copied(request.origin))

    async def _note_copied(self, origin: Origin) -> NoteKeysCopiedResponse:
        fact = AppFact(sealing=Sealing(copied_ms=self._now_ms()))
        await self._write_change(AppChanged(action="had the keys of persons copied"), {COPIED_KEY: fact}, origin)
        return NoteKeysCopiedResponse()

    async def _seal(self, request: SealRequest) -> SealResponse:
        if not await self._apps.refresh():
            raise UnavailableError(OUTDATED)
        ring = await self._persons.make() if self._persons is not None else None
        if ring is None:
            raise ConflictError(
                "the registry has no key to wrap the keys of persons with: give every process the file that `carillon"
                " keys export --persons-key` writes, in CARILLON_PERSONS_KEY_FILE, and start it again"
            )
        reached(Point.KEYS_MADE)
        already = bool(self._apps.sealing.since_ms)
        if not already and not request.only_keys:
            facts = {SEALING_KEY: sealing_fact(self._now_ms(), ring.fingerprint)}
            await self._write_change(AppChanged(action="began to seal personal values"), facts, request.origin)
            reached(Point.KEYS_SEAL)
        sealing = self._apps.sealing
        return SealResponse(since_ms=sealing.since_ms, already_sealed=already, copied_ms=sealing.copied_ms)


class FormerKeys:
    """A service that has Kafka forget the former value of the last block of keys that has changed.

    Kafka compacts no segment that it appends to, and ends one when something is appended: so a record follows the last
    change, once that is older than a segment gets.
    """

    name = "former keys"

    def __init__(self, topic: TopicKeys, tenure: Tenure, clock: Clock) -> None:
        self._topic = topic
        self._tenure = tenure
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            await self._tenure.wait()
            await retry_until_available("former keys of persons may still be in Kafka", self._look)
            await self._clock.sleep_until(self._clock.now_ms() + _LOOK_MS)

    async def _look(self) -> None:
        """Append the record if it is time. UnavailableError: the log does not take it."""
        if self._topic.changed_ms and self._clock.now_ms() >= self._topic.changed_ms + SEGMENT_AFTER_MS:
            await self._topic.begin_segment()


_LOOK_MS = 60_000


_OF_PERSONS = (DEVICE_COMMANDS, PUSH_COMMANDS, TASK_COMMANDS, LOG_INS)
"""Topics of which an installation that was used has records."""


class FirstSealing:
    """Service that has a new installation seal before it has a record about a person; another one stays as it is.

    An installation is new while nobody has registered an app, sent a request or logged in. It may have begun without
    this service, or have no key: then nothing happens. With standbys, the owner decides.
    """

    name = "first sealing"

    def __init__(
        self, switch: SealingSwitch, tenure: RegistryTenure, context: RoleContext, partitions: int, *, makes_keys: bool
    ) -> None:
        """`makes_keys`: the process has what wraps the keys, or makes them beside an embedded log."""
        self._switch = switch
        self._tenure = tenure
        self._log = context.log
        self._apps = context.apps
        self._partitions = partitions
        self._makes_keys = makes_keys

    async def run(self, ready: asyncio.Event) -> None:
        if self._tenure.has_standbys:
            ready.set()
        if self._makes_keys:
            await self._tenure.wait()
            await retry_until_available("a new installation cannot seal personal values yet", self._seal_if_new)
        ready.set()
        await asyncio.Event().wait()

    async def _seal_if_new(self) -> None:
        if not await self._apps.refresh():
            raise UnavailableError(OUTDATED)
        if self._apps.sealing.since_ms or self._apps.all():
            return
        ends = await self._log.ends(
            Partition(topic.name, number)
            for topic in _OF_PERSONS
            for number in range(topic.partitions(self._partitions))
        )
        if not any(ends.values()):
            await self._switch.seal(SealRequest())
            logger.info(
                "this new installation seals personal values in its log",
                next="carillon keys backup FILE, apart from the backups of the log",
            )
