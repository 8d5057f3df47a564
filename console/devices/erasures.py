"""The erasures of persons: read from the topic `erasures`, and how far the roles say that they have forgotten them."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from console.overview.installation import InstallationState, Observer, RoleLine
from protos.registry.v1.registry_pb2 import NoteErasureDoneRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.applied_erasures import erasure_fact
from services.domain.topics import ERASURES_PARTITION
from services.errors import CarillonError
from services.log.port import Log, Record
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.replica.partition_reader import PartitionReader
from services.replica.peers import Peers
from services.replica.status_board import StatusBoard

NOT_FORGOTTEN = (
    "rows of analytics in ClickHouse, and unused parts of the states' files, until the next batch"
    " (CARILLON_ERASURE_BATCH_S)",
    "records from before `carillon keys seal`, in the log, its archive and its backups",
    "contents of pushes to more than 16 devices, bodies of drafts, and answers to requests with an idempotency key",
    "copies of states in the archive of the log, until the next ones are saved",
    "copies of the keys of persons that were made before, with backups of the log",
)
"""What an erasure leaves."""

_DAY_MS = 86_400_000


class KnownErasure(NamedTuple):
    """An erasure in the log. `actor`: user/ID or token/ID; "" for an operator. `done_ms`: None until it is done."""

    offset: int
    erasure_id: str
    devices: int
    time_ms: int
    actor: str
    done_ms: int | None = None


class ErasureDirectory:
    """Service that keeps the erasures of each app in memory, without the names of what they erased."""

    name = "erasure directory"

    def __init__(self, log: Log) -> None:
        self._reader = PartitionReader(self.name, log, ERASURES_PARTITION, self._apply)
        self._of_app: defaultdict[str, list[str]] = defaultdict(list)
        self._erasures: dict[str, KnownErasure] = {}
        self._left: dict[str, None] = {}

    @property
    def change(self) -> asyncio.Event:
        """An event that the next record sets. Get it before asking, then wait for it."""
        return self._reader.applied.change

    async def run(self, ready: asyncio.Event) -> None:
        await self._reader.run(ready)

    async def refresh(self) -> bool:
        """Return True once all records now in the log are applied, False if they are not after two seconds."""
        return await self._reader.refresh()

    def latest(self, appkey: str, before: int | None, limit: int) -> Sequence[KnownErasure]:
        """Return the latest erasures of an app, of those with an offset below `before` if it is given."""
        found = [self._erasures[erasure_id] for erasure_id in self._of_app.get(appkey, [])]
        if before is not None:
            found = [erasure for erasure in found if erasure.offset < before]
        return found[: -limit - 1 : -1]

    def left(self) -> Sequence[KnownErasure]:
        """Return the erasures that are not noted as done, the oldest first."""
        return [self._erasures[erasure_id] for erasure_id in self._left]

    def _apply(self, record: Record) -> None:
        """Apply a record. What is there already is repeated: the first one counts."""
        if (fact := erasure_fact(record)) is None:
            return
        match fact.WhichOneof("fact"):
            case "erased" if fact.erased.erasure_id not in self._erasures:
                erased = fact.erased
                self._erasures[erased.erasure_id] = KnownErasure(
                    *(record.offset, erased.erasure_id, len(erased.devices)),
                    *(fact.meta.time_ms, fact.meta.origin.actor),
                )
                self._of_app[erased.appkey].append(erased.erasure_id)
                self._left[erased.erasure_id] = None
            case "done" if fact.done.erasure_id in self._left:
                done = fact.done.erasure_id
                self._erasures[done] = self._erasures[done]._replace(done_ms=fact.meta.time_ms)
                del self._left[done]


class ErasureEnds:
    """Service that has the registry note each erasure as done, once every role says that it has forgotten the person.

    A console that has just begun has not heard of all processes yet, so it notes nothing.
    """

    name = "ends of erasures"

    def __init__(
        self, erasures: ErasureDirectory, observer: Observer, board: StatusBoard, peers: Peers, clock: Clock
    ) -> None:
        self._erasures = erasures
        self._observer = observer
        self._board = board
        self._peers = peers
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            changes = (self._board.change, self._erasures.change)
            try:
                await self._note()
            except CarillonError as error:
                logger.warning("an erasure cannot be noted as done yet; trying again", error=str(error))
            await wait_for_first(self._clock, None, *changes)

    async def _note(self) -> None:
        if not (left := self._erasures.left()) or self._observer.is_early:
            return
        installation = await self._observer.read()
        for erasure in left:
            if not waiting_for(installation, erasure):
                asked = NoteErasureDoneRequest(erasure_id=erasure.erasure_id)
                await RegistryServiceStub(self._peers.all("registry")[0]).NoteErasureDone(asked)


def waiting_for(installation: InstallationState, erasure: KnownErasure) -> list[str]:
    """Return the roles that do not say that they have forgotten the person, in what they keep on disk too.

    None once the erasure is done: a role that is away later has forgotten the person already.
    """
    if erasure.done_ms is not None:
        return []
    return [role.name for role in installation.roles if not _has_forgotten(role, erasure.offset)]


def _has_forgotten(line: RoleLine, offset: int) -> bool:
    if line.silent or line.away or not line.present:
        return False
    statuses = (role for process in line.present for role in process.status.roles if role.role == line.name)
    return all(role.erasures_until > offset for role in statuses)


def backups_until_ms(erasure: KnownErasure, backup_days: int | None) -> int | None:
    """Return until when backups from before the erasure was done are kept; None where that is not known yet."""
    if backup_days is None or erasure.done_ms is None:
        return None
    return erasure.done_ms + backup_days * _DAY_MS
