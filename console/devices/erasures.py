"""The erasures of persons: read from the topic `erasures`, and how far the roles say that they have forgotten them."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from console.overview.installation import InstallationState, RoleLine
from services.domain.applied_erasures import erasure_of
from services.domain.topics import ERASURES_PARTITION
from services.log.port import Log, Record
from services.replica.partition_reader import PartitionReader

NOT_FORGOTTEN = (
    "copies of a token in unused parts of the registry's files, until `carillon replay registry` makes them anew",
    "rows of analytics in ClickHouse, until its next batch (CARILLON_ERASURE_BATCH_S)",
    "records from before `carillon keys seal`, in the log, its archive and its backups",
    "contents of pushes to more than 16 devices, bodies of drafts, and answers to requests with an idempotency key",
    "copies of states in the archive of the log, until the next ones are saved",
    "copies of the keys of persons that were made before, with backups of the log",
)
"""What an erasure leaves."""

_DAY_MS = 86_400_000


class KnownErasure(NamedTuple):
    """An erasure in the log. `actor`: user/ID or token/ID; "" for an operator."""

    offset: int
    erasure_id: str
    devices: int
    time_ms: int
    actor: str


class ErasureDirectory:
    """Service that keeps the erasures of each app in memory, without the names of what they erased."""

    name = "erasure directory"

    def __init__(self, log: Log) -> None:
        self._reader = PartitionReader(self.name, log, ERASURES_PARTITION, self._apply)
        self._of_app: defaultdict[str, list[KnownErasure]] = defaultdict(list)

    async def run(self, ready: asyncio.Event) -> None:
        await self._reader.run(ready)

    async def refresh(self) -> bool:
        """Return True once all records now in the log are applied, False if they are not after two seconds."""
        return await self._reader.refresh()

    def latest(self, appkey: str, before: int | None, limit: int) -> Sequence[KnownErasure]:
        """Return the latest erasures of an app, of those with an offset below `before` if it is given."""
        found = self._of_app.get(appkey, [])
        if before is not None:
            found = [erasure for erasure in found if erasure.offset < before]
        return found[: -limit - 1 : -1]

    def _apply(self, record: Record) -> None:
        if fact := erasure_of(record):
            erased = fact.erased
            self._of_app[erased.appkey].append(
                KnownErasure(
                    *(record.offset, erased.erasure_id, len(erased.devices)),
                    *(fact.meta.time_ms, fact.meta.origin.actor),
                )
            )


def waiting_for(installation: InstallationState, erasure: KnownErasure) -> list[str]:
    """Return the roles that do not say that they have forgotten the person, in what they keep on disk too."""
    return [role.name for role in installation.roles if not _has_forgotten(role, erasure.offset)]


def _has_forgotten(line: RoleLine, offset: int) -> bool:
    if line.silent or line.away or not line.present:
        return False
    statuses = (role for process in line.present for role in process.status.roles if role.role == line.name)
    return all(role.erasures_until > offset for role in statuses)


def backups_until_ms(erasure: KnownErasure, backup_days: int | None) -> int | None:
    """Return until when backups from before the erasure are kept; None where that is not known."""
    return None if backup_days is None else erasure.time_ms + backup_days * _DAY_MS
