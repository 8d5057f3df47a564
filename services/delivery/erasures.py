"""Erased persons: their contents go out of the state, and messages that wait for their devices are dropped.

The state becomes what the log opens to from now on, so that one that is built again is equal. A push to at most 16
devices has no contents any more, so all its messages are dropped; of a larger list those to the erased devices are.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import PushCommand, SendPush
from protos.registry.v1.erasures_pb2 import PersonErased
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.applied_erasures import erasure_of
from services.domain.recorded_reasons import FixedReason
from services.domain.sealed_log import sealer_of
from services.domain.sealing import FEW_DEVICES, listed_devices
from services.domain.topics import ERASURES_PARTITION, PUSH_COMMANDS
from services.log.port import Log, Record
from services.process import background
from services.process.clock import Clock
from services.replica.partition_reader import PartitionReader

if TYPE_CHECKING:
    from services.delivery.channels.sockets.fanout import Fanout
    from services.delivery.outcome_recorder import OutcomeRecorder
    from services.delivery.starting import PushStarter
    from services.delivery.store import DeliveryStore, Snapshots
    from services.replica.tenure import Tenure


_AT_ONCE = 1000
"""Pushes that are looked at between two turns of the event loop."""


class ErasedNumbers:
    """The numbers of erased devices, of all partitions, by app."""

    def __init__(self) -> None:
        self._by_app: defaultdict[str, defaultdict[int, BitMap]] = defaultdict(lambda: defaultdict(BitMap))

    def add(self, erased: PersonErased) -> None:
        of_app = self._by_app[erased.appkey]
        for device in erased.devices:
            of_app[device.partition].update((device.number, *device.former_numbers))

    def has(self, device: DeviceAddress) -> bool:
        of_app = self._by_app.get(device.appkey)
        return of_app is not None and device.partition in of_app and device.number in of_app[device.partition]

    def ends(self, send: SendPush) -> bool:
        """Return whether the push has no contents any more, because it lists an erased device among few."""
        if send.appkey not in self._by_app or not send.audience.HasField("devices"):
            return False
        listed = listed_devices(send)
        return len(listed) <= FEW_DEVICES and any(self.has(DeviceAddress(send.appkey, *each)) for each in listed)


def concerned(push: StartedPush, numbers: ErasedNumbers) -> bool:
    """Return whether a listed push may name an erased person."""
    return bool(push.send.audience.devices.aliases) or any(
        numbers.has(DeviceAddress(push.send.appkey, *each)) for each in listed_devices(push.send)
    )


def listed_push(state: DeliveryState, msgid: int, numbers: ErasedNumbers) -> StartedPush | None:
    """Return a started push to listed devices; None for another one, and for a packed one to no erased device."""
    if msgid not in state.started:
        return None
    single = state.started.packed(msgid)
    if single is not None and not numbers.has(DeviceAddress(single.appkey, single.partition, single.number)):
        return None
    push = state.started[msgid]
    return push if push.is_listed else None


def to_drop(push: StartedPush, numbers: ErasedNumbers) -> Iterator[tuple[DeviceAddress, int]]:
    """Yield device and message id of the messages of a listed push that are to be dropped."""
    is_over = numbers.ends(push.send)
    for partition, part in push.active_parts.items():
        for number in part.pending_numbers():
            device = DeviceAddress(push.send.appkey, partition, number)
            if is_over or numbers.has(device):
                yield from ((device, msgid) for msgid in part.pending_msgids(number))


class ErasureFollower:
    """A service that follows `erasures`, as owner and as standby; it reads all of them at each start.

    `numbers` gets the erased devices. Messages are dropped by the owner alone. A snapshot is saved at once; no snapshot
    has what was erased up to the offset `applied_until`.
    """

    name = "delivery erasures"

    def __init__(
        self,
        log: Log,
        store: "DeliveryStore",
        tenure: "Tenure",
        recorder: "OutcomeRecorder",
        fanout: "Fanout",
        starter: "PushStarter",
        numbers: ErasedNumbers,
        snapshots: "Snapshots",
        clock: Clock,
    ) -> None:
        self.numbers = numbers
        self.applied_until = 0
        self._log = log
        self._store = store
        self._tenure = tenure
        self._recorder = recorder
        self._fanout = fanout
        self._starter = starter
        self._snapshots = snapshots
        self._clock = clock
        self._facts: list[PersonErased] = []
        self._read_until = 0
        self._wake_up = asyncio.Event()
        self._reader = PartitionReader(self.name, log, ERASURES_PARTITION, self._note)

    async def run(self, ready: asyncio.Event) -> None:
        reading = background.start_endless(self.name, self._reader.run(caught_up := asyncio.Event()))
        begun = asyncio.create_task(self._tenure.wait())
        begun.add_done_callback(lambda _: self._wake_up.set())
        forgotten = dropped = 0
        try:
            waiting = asyncio.create_task(caught_up.wait())
            await asyncio.wait([waiting, reading], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if reading.done():
                reading.result()
            while True:
                self._wake_up.clear()
                facts, read_until = self._facts[forgotten:], self._read_until
                has_changed = await self._forget(facts)
                forgotten += len(facts)
                if self._tenure.is_held and dropped < forgotten:
                    await self._drop()
                    dropped = forgotten
                if not has_changed or await self._snapshots.save_or_log():
                    self.applied_until = read_until
                ready.set()
                await self._wake_up.wait()
        finally:
            for task in (reading, begun):
                task.cancel()
            await asyncio.wait([reading, begun])

    def _note(self, record: Record) -> None:
        if fact := erasure_of(record):
            self.numbers.add(fact.erased)
            self._facts.append(fact.erased)
            self._read_until = record.offset + 1
            self._wake_up.set()

    async def _forget(self, facts: list[PersonErased]) -> bool:
        """Take out of the state what the keys of erased persons sealed; return whether there was anything."""
        sealer = sealer_of(self._log)
        if sealer is None or not facts:
            return False
        by_app: defaultdict[str, PersonErased] = defaultdict(PersonErased)
        for erased in facts:
            by_app[erased.appkey].MergeFrom(erased)
        has_changed = False
        state = self._store.state
        async with self._store.building:
            for requested in state.requested.values():
                if requested.is_listed and (of_app := by_app.get(requested.send.appkey)) is not None:
                    left = sealer.without(PUSH_COMMANDS.name, 0, PushCommand(send=requested.send), of_app)
                    if left is not None:
                        requested.send, has_changed = left.send, True
            for count, msgid in enumerate(list(state.started)):
                if count % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
                push = listed_push(state, msgid, self.numbers)
                of_app = by_app.get(push.send.appkey) if push else None
                if push is None or of_app is None or not concerned(push, self.numbers):
                    continue
                left = sealer.without(PUSH_COMMANDS.name, 0, PushCommand(send=push.send), of_app)
                if left is not None:
                    push.send, has_changed = left.send, True
        return has_changed

    async def _drop(self) -> None:
        """Drop what waits for erased devices, and all of pushes that have no contents any more."""
        self._starter.end_erased()
        now_ms, is_any = self._clock.now_ms(), False
        for count, msgid in enumerate(list(self._store.state.started)):
            if count % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            push = listed_push(self._store.state, msgid, self.numbers)
            for device, each in list(to_drop(push, self.numbers)) if push else ():
                self._recorder.record_final(
                    *(device.partition, device.appkey, each, device.number),
                    *(OutcomeKind.OUTCOME_KIND_DROPPED, now_ms, FixedReason.ERASED),
                )
                self._fanout.acknowledge(device, each)
                is_any = True
        if is_any:
            self._fanout.refill()
            self._recorder.flush_soon()
