"""Delivery processes with the same shard on one log, each of which may be cut off from it or killed, and a gateway."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any, cast

import msgspec

from protos.delivery.v1.delivery_pb2 import AttachResponse, OutcomeKind
from protos.push.v1.push_pb2 import CancelPush, SendPush
from protos.runtime.v1.log_pb2 import Position
from services.delivery.event_writer import EventWriter
from services.delivery.main import build, open_state
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.settings import DeliverySettings
from services.delivery.store import DeliveryStore
from services.delivery.tenure import DeliveryTenure
from services.domain.apps import AppDirectory
from services.domain.role import BuiltRole
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, TOPICS
from services.gateway.connections import DeviceSession
from services.gateway.uplink import UnreportedQueue, Uplink
from services.log.port import DelegatingLog, Log, NewRecord, Partition
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.replica import replay
from services.replica.fencing import SupersededError
from services.replica.instances import InstanceDirectory, OwnerOfShard
from services.replica.membership import Membership
from services.replica.owner_channel import OwnerChannel
from services.replica.peers import Peers
from services.replica.tenure import OwnedServices
from testkit.delivery.records import APP, START_MS, NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.faults.crashing_log import KilledError
from testkit.services import TIMEOUT_S, add_servicers, started
from testkit.waiting import until_holds

INTERVAL_S = 0.1
_RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


class ProcessLog(DelegatingLog):
    """One process's connection to the log. Appends wait while `is_connected` is not set, appends of outcomes also while
    `takes_outcomes` is not; once the process is killed, they fail."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.is_killed = False
        self.is_connected, self.takes_outcomes = asyncio.Event(), asyncio.Event()
        self.is_connected.set()
        self.takes_outcomes.set()

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        await self.is_connected.wait()
        if any(new_record.topic == DELIVERIES.name for new_record in new_records):
            await self.takes_outcomes.wait()
        if self.is_killed:
            raise KilledError
        return await super().append(new_records)


class DeliveryProcess:
    """One process: its log, its role, and the tasks of its services in the order of their start."""

    def __init__(self, log: ProcessLog, role: BuiltRole, server: LocalServer) -> None:
        self.log = log
        self.role = role
        self.server = server
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def tenure(self) -> DeliveryTenure:
        return next(service for service in self.role.services if isinstance(service, DeliveryTenure))

    @property
    def membership(self) -> Membership:
        return next(service for service in self.role.services if isinstance(service, Membership))

    @property
    def store(self) -> DeliveryStore:
        return self.tenure._store

    @property
    def events(self) -> EventWriter:
        return self.tenure._events

    @property
    def recorder(self) -> OutcomeRecorder:
        owned = next(service for service in self.role.services if isinstance(service, OwnedServices))
        return next(service for service in owned._services if isinstance(service, OutcomeRecorder))

    async def end(self) -> None:
        """Wait until the process ends because of an error of one of its services, and raise that."""
        done, _ = await asyncio.wait(self.tasks, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop the services in reverse order, as a process does on SIGTERM."""
        for task in reversed(self.tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KilledError, SupersededError):
                await task

    async def kill(self) -> None:
        """End the process without another record of it."""
        self.log.is_killed = True
        self.log.takes_outcomes.set()
        self.server._handlers.clear()
        await self.stop()


class Processes:
    """Processes by address; callers find the owner in the log."""

    def __init__(self, harness: DeliveryHarness) -> None:
        self.harness = harness
        self.directory = InstanceDirectory()
        self.by_address: dict[str, DeliveryProcess] = {}
        self._servers: defaultdict[str, LocalServer] = defaultdict(LocalServer)
        channel: Any = OwnerChannel(self.directory, "delivery", 0, "a", self._connect)
        self.channel = cast(Channel, channel)
        self.peers = Peers({"delivery": [self.channel], "targeting": [], "registry": []}, TOPICS, self.directory)

    async def start(self, address: str) -> DeliveryProcess:
        """Start a process; return it once it owns the shard, if it is the first one, or stands by."""
        harness, server = self.harness, self._servers[address]
        log = ProcessLog(harness.log)
        directory = str(harness.directory / address)
        settings = self._settings(address)
        membership = Membership(log, harness.clock, "delivery", 0, address, directory, INTERVAL_S)
        context = replace(harness.role_context(), log=log, apps=AppDirectory(log), membership=membership)
        process = self.by_address[address] = DeliveryProcess(log, build(settings, context), server)
        add_servicers(process.role, server)
        for service in (context.apps, *process.role.services):
            process.tasks.append(await started(service))
        if len(self.by_address) == 1:
            await self.until_owner(address)
        return process

    async def until_owner(self, address: str) -> DeliveryProcess:
        """Return the process at the address once the log tells that it is the owner, and it has begun its tenure."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.directory.address("delivery", 0) != address:
                await self.directory.change.wait()
            await self.by_address[address].tenure.tenure.wait()
        return self.by_address[address]

    async def command(self, command: SendPush | CancelPush) -> None:
        """Append a command, and wait as the edge does until the owner has applied it."""
        (offset,) = await self.harness.command(command, wait_applied=False)
        await self.peers.wait_applied([Position(topic=PUSH_COMMANDS.name, partition=0, offset=offset)])

    async def folded(self, process: DeliveryProcess) -> None:
        """Wait until a process has folded all that the log holds now."""
        ends = await self.harness.log.ends(process.store.partitions)
        await until_holds(lambda: _has_reached(process.store, ends))

    async def verify(self, address: str) -> replay.ReplayComparison:
        """Compare the state that the process at the address has saved with one rebuilt from the log."""
        settings, log = self._settings(address), self.harness.log
        ends = await log.ends(self.by_address[address].store.partitions)
        directory = settings.state_dir("delivery")
        source = replay.ReplaySource(log, ends)
        return await replay.verify(lambda path, log: open_state(settings, path, log), directory, source)

    def _settings(self, address: str) -> DeliverySettings:
        return msgspec.structs.replace(self.harness.settings, data_dir=str(self.harness.directory / address))

    def _connect(self, address: str) -> Channel:
        return self._servers[address].channel()


class Gateway:
    """A gateway's uplink to the owner; `messages` holds (connection, message id) in the order received."""

    def __init__(self, processes: Processes) -> None:
        self.messages: list[tuple[int, int]] = []
        self.queue = UnreportedQueue()
        self._sessions: dict[NumberedDevice, DeviceSession] = {}
        owner = OwnerOfShard(processes.directory, "delivery", 0)
        self.uplink = Uplink(
            processes.channel, owner, "test", self.queue, lambda: list(self._sessions.values()), self._handle, Random(1)
        )

    def connect(self, connection: int, device: NumberedDevice) -> None:
        session = DeviceSession(connection, APP, f"token-{device.number}", *device)
        self._sessions[device] = session
        self.queue.connected(session)

    def acknowledge(self, device: NumberedDevice, msgid: int) -> None:
        self.queue.report(self._sessions[device], [msgid], _RECEIVED, START_MS)

    async def until(self, *messages: tuple[int, int]) -> None:
        """Wait until exactly these messages have been received."""
        await until_holds(lambda: len(self.messages) >= len(messages))
        assert self.messages == list(messages)

    async def until_recorded(self) -> None:
        """Wait until the log has all reports."""
        await until_holds(lambda: not self.queue.unrecorded)

    async def _handle(self, response: AttachResponse) -> None:
        for send in response.sends:
            connections = memoryview(send.connections).cast("Q").tolist()
            msgids = memoryview(send.msgids).cast("Q").tolist()
            self.messages += zip(connections, msgids * (len(connections) if len(msgids) == 1 else 1), strict=True)


@asynccontextmanager
async def running(harness: DeliveryHarness) -> AsyncIterator[tuple[Processes, Gateway]]:
    """Follow the owners and run a gateway; stop all processes at the end."""
    processes = Processes(harness)
    following = asyncio.create_task(processes.directory.run(harness.log))
    gateway = Gateway(processes)
    uplink = await started(gateway.uplink)
    try:
        yield processes, gateway
    finally:
        gateway.queue.unrecorded = 0
        for task in (uplink, following):
            task.cancel()
            await asyncio.wait([task])
        for process in processes.by_address.values():
            await process.stop()


def _has_reached(store: DeliveryStore, ends: dict[Partition, int]) -> bool:
    return all(store.reached.get(partition, 0) >= end for partition, end in ends.items())
