"""Erasure of a person: a fact in `erasures`, from which all that follows can be repeated after a kill.

    ErasePerson ─▶ PersonErasure: ErasureFact ─▶ ErasureWorker of each instance: keys, revoked numbers, stubs

A stub takes the place of a device's record: its number, its former ones, and what statistics count by them. The keys of
what the log holds sealed are destroyed, so a state that is built again from the log finds no more than the stubs.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.registry.v1.erasures_pb2 import ErasedDevice, ErasureDone, ErasureFact, PersonErased
from protos.registry.v1.registry_pb2 import (
    ErasePersonRequest,
    ErasePersonResponse,
    FindAliasesRequest,
    GetDevicesRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain import ids
from services.domain.applied_erasures import erasure_fact
from services.domain.command_writer import Command, CommandWriter
from services.domain.ids import RecordStamp
from services.domain.ios_tokens import spellings
from services.domain.role import RoleContext
from services.domain.sealed_log import sealed_log_of
from services.domain.sealing import Sealer, is_name
from services.domain.topics import DEVICES, ERASURES, ERASURES_PARTITION, device_key
from services.errors import Code, ConflictError, InputError, NotFoundError, UnavailableError
from services.log.port import Log, Record
from services.log.topics import partition_of
from services.process import background
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.registry.decide import erased, revoke_numbers
from services.registry.projection import RegistryProjection
from services.registry.rules import device_fact, published_revocations
from services.registry.store import DeviceTable, is_erased
from services.replica.follower import Follower
from services.replica.partition_reader import PartitionReader
from services.replica.store import Fact

BATCH = 100
"""Erasures whose stubs are written in one transaction; commands are decided between two of them."""

_SEALING_OFF = (
    "nobody is erased: this installation does not seal personal values in its log, so the log, its archive and its"
    " backups would keep them all"
)


class RecordedErasure(NamedTuple):
    """An erasure in the log, and whether the log says that every role has forgotten the person."""

    fact: ErasureFact
    is_done: bool


KnownErasure = Callable[[str], Awaitable[RecordedErasure | None]]


class PersonErasure:
    """Finds the devices of a person and appends the fact that they are erased."""

    def __init__(
        self,
        context: RoleContext,
        writer: CommandWriter,
        partitions: int,
        known: KnownErasure,
    ) -> None:
        """`known` returns the erasure with an id that is in the log now, if there is one."""
        self._context = context
        self._writer = writer
        self._partitions = partitions
        self._known = known

    async def erase(self, appkey: str, request: ErasePersonRequest) -> ErasePersonResponse:
        """Append the fact, unless there is one with the id that is asked for.

        ConflictError: nothing is sealed. NotFoundError: the app has no such device.
        """
        log = sealed_log_of(self._context.log)
        if log is None or not log.seals:
            raise ConflictError(_SEALING_OFF)
        if request.erasure_id and not request.dry_run and (known := await self._known(request.erasure_id)):
            return _answer(known.fact)
        devices, aliases = await self._found(appkey, request)
        if not devices:
            raise NotFoundError(Code.APP_WITHOUT_DEVICE, appkey=appkey)
        if request.dry_run:
            return ErasePersonResponse(
                devices=len(devices), token=devices[0].token if request.HasField("token") else ""
            )
        fact = ErasureFact(erased=person_erased(log.sealer, appkey, devices, aliases, request.erasure_id))
        origin = request.origin if request.HasField("origin") else None
        await self._writer.append([Command(ERASURES, fact.erased.erasure_id.encode(), fact)], origin)
        reached(Point.ERASURE_APPENDED)
        return _answer(fact)

    async def note_done(self, erasure_id: str) -> None:
        """Append the fact that an erasure is done, unless it is there. NotFoundError: there is no such erasure."""
        known = await self._known(erasure_id)
        if known is None:
            raise NotFoundError("there is no erasure with this id")
        if not known.is_done:
            done = ErasureFact(done=ErasureDone(erasure_id=erasure_id, appkey=known.fact.erased.appkey))
            await self._writer.append([Command(ERASURES, erasure_id.encode(), done)])

    async def _found(self, appkey: str, request: ErasePersonRequest) -> tuple[Sequence[Device], Collection[str]]:
        """Return the devices of the person, and the aliases that are nobody else's."""
        match request.WhichOneof("person"):
            case "alias":
                tokens = await self._tokens_of(appkey, request.alias)
                found = [device for token in tokens for device in await self._devices(appkey, token)]
                return found, [request.alias]
            case "token":
                spelled = [await self._devices(appkey, token) for token in spellings(request.token)]
                found = next((devices for devices in spelled if devices), [])
                alias = found[0].alias if found else ""
                others = set(await self._tokens_of(appkey, alias)) if alias else set()
                return found, [alias] if alias and others <= {found[0].token} else []
            case _:
                raise InputError("give an alias or a token")

    async def _tokens_of(self, appkey: str, alias: str) -> list[str]:
        registries = self._context.peers.all("registry")
        owner = RegistryServiceStub(registries[partition_of(device_key(appkey, alias), len(registries))])
        (found,) = (await owner.FindAliases(FindAliasesRequest(appkey=appkey, aliases=[alias], all=True))).aliases
        return [device.token for device in found.devices]

    async def _devices(self, appkey: str, token: str) -> list[Device]:
        partition = partition_of(device_key(appkey, token), self._partitions)
        owner = RegistryServiceStub(self._context.peers.owner("registry", partition))
        asked = GetDevicesRequest(appkey=appkey, tokens=[token], removed_too=True)
        return list((await owner.GetDevices(asked)).devices)


def _answer(fact: ErasureFact) -> ErasePersonResponse:
    erased = fact.erased
    return ErasePersonResponse(erasure_id=erased.erasure_id, devices=len(erased.devices), time_ms=fact.meta.time_ms)


def person_erased(
    sealer: Sealer, appkey: str, devices: Sequence[Device], aliases: Collection[str], erasure_id: str = ""
) -> PersonErased:
    """Return what the fact says of these devices and aliases, without a value of the person."""
    token_names = [sealer.ring.name("token", appkey, device.token) for device in devices]
    alias_names = sorted(sealer.ring.name("alias", appkey, alias) for alias in aliases)
    subjects = [
        *(sealer.named_subject("token", appkey, name) for name in token_names),
        *(sealer.named_subject("alias", appkey, name) for name in alias_names),
        *(
            sealer.numbered_subject(appkey, device.partition, number)
            for device in devices
            for number in (device.number, *device.former_numbers)
        ),
    ]
    return PersonErased(
        erasure_id=erasure_id or ids.event_id()[:8].hex(),
        appkey=appkey,
        devices=[
            ErasedDevice(
                partition=device.partition,
                number=device.number,
                former_numbers=device.former_numbers,
                token_name=name,
            )
            for device, name in zip(devices, token_names, strict=True)
        ],
        alias_names=alias_names,
        subjects=list(dict.fromkeys(subjects)),
    )


class ErasureWorker:
    """A service that destroys the keys of erased persons, revokes their devices' numbers, and leaves stubs of these.

    It reads all of `erasures` at each start, and repeats what is not done yet. `facts`: those read, with their offsets.
    """

    name = "registry erasures"

    def __init__(
        self,
        follower: Follower,
        devices: DeviceTable,
        log: Log,
        owned: Iterable[int],
        clock: Clock,
        *,
        holds_keys: bool,
        are_resealed: Callable[[], bool],
    ) -> None:
        """`holds_keys`: the process destroys the stored keys, and not another shard's.
        `are_resealed`: no record of a device is in the log under a key with its token.
        """
        self._follower = follower
        self._devices = devices
        self._log = log
        self._owned = frozenset(owned)
        self._clock = clock
        self._holds_keys = holds_keys
        self._are_resealed = are_resealed
        self._stamp = RecordStamp("registry")
        self.facts: list[tuple[int, ErasureFact]] = []
        self._done_ids: set[str] = set()
        self._done_until = 0
        self._wake_up = asyncio.Event()
        self._reader = PartitionReader(self.name, log, ERASURES_PARTITION, self._note)

    async def run(self, ready: asyncio.Event) -> None:
        reading = background.start_endless(self.name, self._reader.run(caught_up := asyncio.Event()))
        try:
            waiting = asyncio.create_task(caught_up.wait())
            await asyncio.wait([waiting, reading], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if reading.done():
                reading.result()
            ready.set()
            while True:
                ended = await self._follower.tenure.wait()
                done = 0
                while not ended.is_set():
                    self._wake_up.clear()
                    while done < len(self.facts):
                        batch = self.facts[done : done + BATCH]
                        await self._erase([fact for _, fact in batch])
                        done += len(batch)
                        self._done_until = batch[-1][0] + 1
                    await self._until_woken(ended)
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def known(self, erasure_id: str) -> RecordedErasure | None:
        """Return the erasure with this id that is in the log now; None: there is none.

        UnavailableError: the log does not answer.
        """
        if not await self._reader.refresh():
            raise UnavailableError("the log of erasures cannot be read; try again")
        found = next((fact for _, fact in self.facts if fact.erased.erasure_id == erasure_id), None)
        return found and RecordedErasure(found, erasure_id in self._done_ids)

    def done_until(self) -> float:
        """Return up to which offset keys are destroyed and stubs written; a standby, which does not, has no limit."""
        return math.inf if self._follower.tenure.stands_by else self._done_until

    async def _until_woken(self, ended: asyncio.Event) -> None:
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._wake_up, ended)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _note(self, record: Record) -> None:
        if (fact := erasure_fact(record)) is None:
            return
        match fact.WhichOneof("fact"):
            case "erased":
                self.facts.append((record.offset, fact))
                self._wake_up.set()
            case "done":
                self._done_ids.add(fact.done.erasure_id)

    async def _erase(self, facts: Sequence[ErasureFact]) -> None:
        log = sealed_log_of(self._log)
        if log is not None and self._holds_keys:
            subjects = [subject for fact in facts for subject in fact.erased.subjects]
            await asyncio.to_thread(_destroy, log.sealer, subjects)
        reached(Point.ERASURE_KEYS_DESTROYED)
        await self._follower.write(partial(self._stubs, facts))

    def _stubs(self, facts: Sequence[ErasureFact]) -> Sequence[Fact]:
        """Return the facts that revoke the numbers of the erased devices, and the stubs that are missing."""
        numbers: defaultdict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        stubs: list[Fact] = []
        has_former_keys = not self._are_resealed()
        for fact in facts:
            for each in fact.erased.devices:
                if each.partition not in self._owned:
                    continue
                found = self._devices.by_number(fact.erased.appkey, each.partition, each.number)
                if found is None or is_erased(found):
                    continue
                revoked = numbers[fact.erased.appkey, each.partition]
                revoked |= dict.fromkeys((each.number, *each.former_numbers), fact.meta.time_ms)
                stubs.append(device_fact(erased(found, each.token_name, fact.meta.time_ms)))
                if has_former_keys and not is_name(found.token):  # the removing record names the token in its key
                    stubs.append(Fact(DEVICES, each.partition, device_key(found.appkey, found.token), None))
        return self._with_meta([*self._revocations(numbers), *stubs])

    def _revocations(self, numbers: "defaultdict[tuple[str, int], dict[int, int]]") -> list[Fact]:
        found: list[Fact] = []
        for (appkey, partition), times in numbers.items():
            revoked = self._devices.revoked(appkey, partition)
            record = revoke_numbers(appkey, partition, times, revoked, max(times.values()))
            if record is not None:
                own = Fact(DEVICES, partition, appkey.encode(), DeviceFact(revocations=record))
                found += [own, published_revocations(record)]
        return found

    def _with_meta(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        for fact in facts:
            if fact.message is not None:
                self._stamp.complete(fact.message.meta, self._clock.now_ms())
        return facts


def _destroy(sealer: Sealer, subjects: Iterable[bytes]) -> None:
    for subject in subjects:
        sealer.ring.puncture(subject)


class ErasedRows:
    """Says up to which erasure the rows of an instance have forgotten the persons, whether it owns them or stands by.

    What the log says of a device is before its erasure. So once the instance has applied what is before an erasure, the
    rows name the person until the stubs are applied, which may be those of other instances, and then no more.
    """

    def __init__(
        self,
        log: Log,
        projection: RegistryProjection,
        owned: Iterable[int],
        facts: Callable[[], Sequence[tuple[int, ErasureFact]]],
    ) -> None:
        """`facts` returns those of all erasures that were read."""
        self._log = log
        self._projection = projection
        self._owned = frozenset(owned)
        self._facts = facts
        self._until = min(projection.devices.purged_until, projection.aliases.purged_until)

    async def forgotten_until(self) -> int:
        """Return the offset after the last erasure that no row names. UnavailableError: the log is away."""
        devices, aliases = self._projection.device_follower, self._projection.alias_follower
        applied = (await devices.offsets()).get(ERASURES_PARTITION, 0)
        found = [(offset, fact.erased) for offset, fact in self._facts() if self._until <= offset < applied]
        ends = await self._log.ends(self._projection.partitions)
        await aliases.applied.wait((partition, end - 1) for partition, end in ends.items() if end)
        count = await devices.query(self._first_named, found, self._has_device)
        count = await aliases.query(self._first_named, found[:count], self._is_indexed)
        if count:
            self._until = found[count - 1][0] + 1
        return self._until

    def _first_named(
        self, erasures: Sequence[tuple[int, PersonErased]], is_named: Callable[[str, ErasedDevice], bool]
    ) -> int:
        """Return the index of the first erasure with a device that is still named."""
        for index, (_, person) in enumerate(erasures):
            if any(is_named(person.appkey, device) for device in person.devices):
                return index
        return len(erasures)

    def _has_device(self, appkey: str, device: ErasedDevice) -> bool:
        if device.partition not in self._owned:
            return False
        found = self._projection.device_table.by_number(appkey, device.partition, device.number)
        return found is not None and not is_erased(found)

    def _is_indexed(self, appkey: str, device: ErasedDevice) -> bool:
        number = (appkey, device.partition, device.number)
        return self._projection.alias_table.names(*number) or self._projection.address_table.names(*number)
