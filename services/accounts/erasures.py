"""Erasures of persons that accounts ask for: done at once, or once another administrator of the team confirms them.

    ErasePerson ─▶ the registry's ErasePerson, or ChangeProposed ─▶ ChangeDecided ─▶ ErasureSender: the registry's
                   ErasePerson with the id in the change ─▶ ErasureSent

The alias or token is sealed in the log with the person's own key, so that it goes with the erasure.
"""

import asyncio

from protos.accounts.v1.accounts_pb2 import AccountFact, ErasureChange, ErasureSent, PendingChange
from protos.accounts.v1.service_pb2 import ErasePersonRequest, ErasePersonResponse
from protos.registry.v1 import registry_pb2
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.decide import actor_of, pending_of
from services.accounts.decide_teams import needs_confirmation, propose_erasure
from services.accounts.fact_writer import FactWriter
from services.accounts.store import AccountTable
from services.domain.sealed_log import sealed_log_of
from services.domain.secret_texts import new_id
from services.errors import CarillonError, NotFoundError, UnavailableError
from services.log.port import Log
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.follower import Follower
from services.replica.peers import Peers

_AT_ONCE = 20
_RETRY_S = 1.0


class PersonErasures:
    """Erases persons by the registry, or notes that an erasure waits for another administrator."""

    def __init__(
        self, follower: Follower, committed: AccountTable, writer: FactWriter, peers: Peers, log: Log, clock: Clock
    ) -> None:
        self._follower = follower
        self._committed = committed
        self._writer = writer
        self._peers = peers
        self._log = log
        self._clock = clock

    async def erase(self, request: ErasePersonRequest) -> ErasePersonResponse:
        """Erase the person, or return the change that waits. Errors as for the registry's method.

        PermissionDeniedError: the account may not erase persons of the app.
        """
        waits = await self._follower.query(self._needs_confirmation, self._committed, request)
        if waits and not request.dry_run:
            found = await erase(self._peers, _asked(request, dry_run=True))
            if (pending := await self._proposed(request, found)) is not None:
                erasure = pending.erase
                return ErasePersonResponse(erasure_id=erasure.erasure_id, devices=erasure.devices, pending=pending)
        done = await erase(self._peers, _asked(request, dry_run=request.dry_run))
        return ErasePersonResponse(erasure_id=done.erasure_id, devices=done.devices, time_ms=done.time_ms)

    def _needs_confirmation(self, accounts: AccountTable, request: ErasePersonRequest) -> bool:
        actor = actor_of(accounts, request.origin, self._clock.now_ms())
        return needs_confirmation(accounts, actor, request.appkey)

    async def _proposed(
        self, request: ErasePersonRequest, found: registry_pb2.ErasePersonResponse
    ) -> PendingChange | None:
        """Return the change that waits; None: by now the team asks for no second person."""
        log = sealed_log_of(self._log)
        if log is None or not log.seals:
            raise UnavailableError("accounts does not seal personal values yet; try again")
        change = ErasureChange(appkey=request.appkey, erasure_id=new_id(), devices=found.devices)
        if request.HasField("alias"):
            change.alias = request.alias
        else:
            change.token = found.token  # as the device has it: another spelling would not be erased with the device
        return pending_of(
            await self._writer.write_for(
                request.origin,
                lambda accounts, actor, now_ms: propose_erasure(accounts, actor, change, now_ms),
            )
        )


class ErasureSender:
    """Service that carries out each confirmed erasure, whatever becomes of the call that confirmed it.

    The id of the erasure is in the change, so a repeated call of the registry erases nothing twice.
    """

    name = "erasure sender"

    def __init__(self, follower: Follower, committed: AccountTable, writer: FactWriter, peers: Peers) -> None:
        self._follower = follower
        self._committed = committed
        self._writer = writer
        self._peers = peers

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            change = self._follower.applied.change
            while await self._carry_out_some():
                pass
            await change.wait()

    async def _carry_out_some(self) -> bool:
        """Carry out some confirmed erasures; return whether there may be more."""
        confirmed = await self._follower.query(self._committed.confirmed_erasures, _AT_ONCE)
        facts = [fact for change in confirmed if (fact := await self._carried_out(change)) is not None]
        if facts:
            await self._writer.write(lambda accounts, now_ms: (None, facts), Origin())
        elif confirmed:
            await asyncio.sleep(_RETRY_S)
        return bool(confirmed)

    async def _carried_out(self, change: PendingChange) -> AccountFact | None:
        """Return the fact that the registry has the erasure; None: it has to be tried again."""
        erasure, sent = change.erase, ErasureSent(change_id=change.change_id)
        request = registry_pb2.ErasePersonRequest(
            appkey=erasure.appkey,
            origin=Origin(interface="console", actor=change.proposed_by),
            erasure_id=erasure.erasure_id,
        )
        _name_person(request, erasure)
        try:
            await erase(self._peers, request)
        except NotFoundError:
            sent.nobody_found = True
        except CarillonError as error:
            logger.warning("a confirmed erasure cannot be carried out yet; trying again", error=str(error))
            return None
        return AccountFact(erasure_sent=sent)


async def erase(peers: Peers, request: registry_pb2.ErasePersonRequest) -> registry_pb2.ErasePersonResponse:
    """Call the owner of the registry's shard 0, which erases."""
    return await RegistryServiceStub(peers.all("registry")[0]).ErasePerson(request)


def _asked(request: ErasePersonRequest, *, dry_run: bool) -> registry_pb2.ErasePersonRequest:
    asked = registry_pb2.ErasePersonRequest(appkey=request.appkey, origin=request.origin, dry_run=dry_run)
    _name_person(asked, request)
    return asked


def _name_person(request: registry_pb2.ErasePersonRequest, person: ErasePersonRequest | ErasureChange) -> None:
    if person.HasField("alias"):
        request.alias = person.alias
    elif person.HasField("token"):
        request.token = person.token
