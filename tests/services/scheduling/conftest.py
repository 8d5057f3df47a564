"""The scheduling role on an embedded log, started and stopped as a process would, and killed at chosen points."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protos.push.v1.push_pb2 import Audience, Everyone, Message, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta, Origin, Position
from protos.scheduling.v1.scheduling_pb2 import (
    CancelTask,
    CreateTask,
    GetTaskRequest,
    Task,
    TaskCommand,
    TaskFact,
    TaskStatus,
)
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.domain.apps import AppDirectory
from services.domain.ids import event_id
from services.domain.master_key import KeyPurpose, Keys, MasterKey
from services.domain.role import RoleContext
from services.domain.topics import TASK_COMMANDS, TOPICS, decode
from services.log.port import Log, NewRecord, Partition, Record
from services.log.sqlite.log import SqliteLog
from services.log.topics import partition_of
from services.net.rpc.local import LocalServer
from services.process.clock import ManualClock
from services.registry.main import build as build_registry
from services.registry.settings import RegistrySettings
from services.replica.peers import Peers
from services.scheduling.main import build
from services.scheduling.settings import SchedulingSettings
from testkit.faults.crashing_log import CrashingLog, KilledError, records_of
from testkit.services import add_servicers

START_MS = 1_800_000_000_000
PARTITIONS = 4
APP = "1000000001"
OTHER_APP = "1000000002"


class CrashOnRecordLog(CrashingLog):
    """A log that simulates a crash at the first append of a record for which `when` is true, before or after it."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.when: Callable[[Any], bool] = lambda message: False
        self.after = False

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if not any(self.when(_message(new_record)) for new_record in new_records):
            return await self._log.append(new_records)
        self.when = lambda message: False
        if self.after:
            await self._log.append(new_records)
        self.died.set()
        raise KilledError


def _message(new_record: NewRecord) -> Any:
    return TOPICS[new_record.topic].envelope().FromString(new_record.value)


@dataclass
class SchedulingHarness:
    """The scheduling role on one data directory, log and clock; it can be started and stopped repeatedly."""

    directory: Path
    log: CrashOnRecordLog
    clock: ManualClock
    settings: SchedulingSettings
    peers: Peers = field(default_factory=lambda: Peers({"scheduling": [], "registry": []}, TOPICS))
    show_registry: Callable[[], None] = field(default=lambda: None)
    accounts: LocalServer = field(default_factory=LocalServer)

    @contextlib.asynccontextmanager
    async def running(self, registries: int = 0, hidden: bool = False) -> AsyncIterator[None]:
        """Run registry instances and then scheduling; `hidden` instances do not answer before `show_registry`."""
        server = LocalServer()
        registry_servers = [LocalServer() for _ in range(max(registries, 1))]
        channels = {"scheduling": [server.channel()], "registry": [one.channel() for one in registry_servers]}
        self.peers = Peers({**channels, "targeting": [], "delivery": [], "accounts": [self.accounts.channel()]}, TOPICS)
        apps = AppDirectory(self.log)
        context = RoleContext(self.log, self.clock, self.peers, Keys({}), apps)
        settings = RegistrySettings(data_dir=str(self.directory), partitions=PARTITIONS, shards=registries or 1)
        of_registry = replace(context, keys=MasterKey(bytes(32)).only([KeyPurpose.SECRETS]))
        registry = [
            build_registry(msgspec.structs.replace(settings, shard=shard), of_registry) for shard in range(registries)
        ]
        scheduling = build(self.settings, context)
        add_servicers(scheduling, server)

        def show_registry() -> None:
            for role, one in zip(registry, registry_servers, strict=False):
                add_servicers(role, one)

        self.show_registry = show_registry
        if not hidden:
            show_registry()
        services = [service for role in (*registry, scheduling) for service in role.services]
        async with started([apps, *services]):
            yield

    async def command(self, command: TaskCommand, wait: bool = True, origin: Origin | None = None) -> bytes:
        """Append the command as the edge does and wait until it is applied. Returns its event id."""
        key = command.task_key.encode()
        partition = partition_of(key, self.settings.partitions)
        command.meta.CopyFrom(
            Meta(
                event_id=event_id(),
                time_ms=self.clock.now_ms(),
                writer="edge",
                origin=origin or Origin(interface="v2"),
            )
        )
        new_record = NewRecord(TASK_COMMANDS.name, partition, key, command.SerializeToString())
        (offset,) = await self.log.append([new_record])
        if wait:
            await self.peers.wait_applied([Position(topic=TASK_COMMANDS.name, partition=partition, offset=offset)])
        return command.meta.event_id

    async def create(
        self, key: str, *pushes: SendPush, in_s: float = 60, wait: bool = True, origin: Origin | None = None
    ) -> None:
        create = CreateTask(pushes=pushes or [push(1)], due_ms=self.clock.now_ms() + int(in_s * 1000))
        await self.command(TaskCommand(task_key=key, create=create), wait, origin)

    async def cancel(self, key: str, appkey: str = APP, wait: bool = True) -> bytes:
        return await self.command(TaskCommand(task_key=key, cancel=CancelTask(appkeys=[appkey])), wait)

    @property
    def stub(self) -> Any:
        return SchedulingServiceStub(self.peers.owner("scheduling", 0))

    async def task(self, key: str, appkey: str = APP) -> Task:
        answer = await self.stub.GetTask(GetTaskRequest(task_key=key, appkeys=[appkey]))
        return answer.task  # type: ignore[no-any-return]

    async def status(self, key: str, appkey: str = APP) -> str:
        return TaskStatus.Name((await self.task(key, appkey)).status).removeprefix("TASK_STATUS_")

    async def sent_pushes(self) -> list[PushCommand]:
        return [decode(record) for record in await self.records(Partition("push-commands", 0))]

    async def facts(self, kind: str) -> list[TaskFact]:
        """Return the facts of this kind in `tasks`, partition by partition."""
        partitions = [Partition("tasks", number) for number in range(self.settings.partitions)]
        facts = [decode(record) for partition in partitions for record in await self.records(partition)]
        return [fact for fact in facts if fact.WhichOneof("fact") == kind]

    async def records(self, partition: Partition) -> list[Record]:
        return await records_of(self.log, partition)

    async def until_sent(self, count: int) -> None:
        """Wait until `count` TaskSent facts are in the log."""
        async with asyncio.timeout(60):
            reader = await self.log.open({Partition("tasks", n): 0 for n in range(self.settings.partitions)})
            while count > 0:
                count -= sum(decode(record).WhichOneof("fact") == "sent" for record in await reader.read())
            await reader.close()


def push(msgid: int, appkey: str = APP, audience: Audience | None = None, id_count: int = 1) -> SendPush:
    everyone = Audience(everyone=Everyone())
    message = Message(content=f"message {msgid}")
    return SendPush(
        msgid=msgid, id_count=id_count, appkey=appkey, audience=audience or everyone, message=message, period_s=60
    )


@contextlib.asynccontextmanager
async def started(services: Sequence[Any]) -> AsyncIterator[None]:
    """Start the services in order and cancel them in reverse order at the end. A service may end with KilledError."""
    tasks: list[asyncio.Task[None]] = []
    try:
        for service in services:
            ready = asyncio.Event()
            tasks.append(asyncio.create_task(service.run(ready)))
            waits = [asyncio.create_task(ready.wait()), tasks[-1]]
            await asyncio.wait(waits, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            if not ready.is_set() and not tasks[-1].done():
                raise TimeoutError(f"{service.name} was not ready")
        yield
    finally:
        for task in reversed(tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KilledError):
                await task


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SchedulingHarness]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    settings = SchedulingSettings(data_dir=str(tmp_path), partitions=PARTITIONS)
    yield SchedulingHarness(tmp_path, CrashOnRecordLog(log), ManualClock(START_MS), settings)
    await log.close()
