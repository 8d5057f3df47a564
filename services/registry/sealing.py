"""The calls that switch the sealing of personal values on, and note that its keys were copied."""

from protos.registry.v1.apps_pb2 import AppChanged, AppFact, Sealing
from protos.registry.v1.registry_pb2 import (
    NoteKeysCopiedRequest,
    NoteKeysCopiedResponse,
    SealRequest,
    SealResponse,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import COPIED_KEY, OUTDATED, SEALING_KEY
from services.domain.role import RoleContext
from services.domain.sealing_switch import sealing_fact
from services.errors import ConflictError, UnavailableError
from services.process.crashpoint import Point, reached
from services.registry.key_rotation import ChangeQueue
from services.registry.pauses import WriteChange


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
