"""The delivery role with targeting on an embedded log, started, stopped and killed in the test's process."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protos.delivery.v1.delivery_pb2 import PushFact
from protos.push.v1.push_pb2 import Audience, CancelPush, Everyone, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, AppFact, Pause
from protos.registry.v1.apps_pb2 import Channel as AddressChannel
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.event_writer import EventWriter
from services.delivery.main import ROLE, build, open_state
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.settings import DeliverySettings
from services.delivery.starting import PushStarter
from services.delivery.store import SNAPSHOT, DeliveryStore, Snapshots
from services.delivery.tenure import DeliveryTenure
from services.domain.apps import AppDirectory
from services.domain.ids import event_id
from services.domain.master_key import MasterKey
from services.domain.role import BuiltRole, RoleContext
from services.domain.topics import APPS, DELIVERIES, PUSH_COMMANDS, PUSHES, TOPICS, decode
from services.log.point_in_time import until_ready
from services.log.port import NewRecord, Partition, Record
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.process.clock import ManualClock
from services.replica import replay
from services.replica.peers import Peers
from services.targeting.main import build as build_targeting
from services.targeting.settings import TargetingSettings
from testkit.delivery.gateway import GatewayClient
from testkit.delivery.message_ids import SoleWriterIds
from testkit.delivery.records import (
    APP,
    PARTITIONS,
    NumberedDevice,
    OutcomeRow,
    device_record,
    listed_audience,
    outcome_rows,
)
from testkit.faults.crashing_log import KilledError, KillingLog, records_of
from testkit.services import TIMEOUT_S, add_servicers, running_services
from testkit.waiting import run_ready_tasks

ANDROID_APP = App(appkey=APP, platform=PLATFORM_ANDROID)


@dataclass
class DeliveryHarness:
    """A data directory, a log and a clock, on which the roles run as often as a test needs."""

    directory: Path
    log: KillingLog
    clock: ManualClock
    ids: SoleWriterIds
    settings: DeliverySettings
    server: LocalServer = field(default_factory=LocalServer)
    targeting_server: LocalServer = field(default_factory=LocalServer)
    further_targeting: Sequence[LocalServer] = ()
    """Further instances of targeting, for the partitions p with p mod instances above 0; an empty one never answers."""
    role: BuiltRole = field(default=BuiltRole("none", []))
    show_targeting: Callable[[], None] = field(default=lambda: None)

    # --- processes

    @contextlib.asynccontextmanager
    async def running(self, hide_targeting: bool = False, registry: Channel | None = None) -> AsyncIterator[None]:
        """Run targeting and delivery; a hidden targeting is UNAVAILABLE until `show_targeting` is called."""
        self.log.restart()
        self.server, self.targeting_server = LocalServer(), LocalServer()
        context = self.role_context(registry)
        settings = TargetingSettings(data_dir=str(self.directory), partitions=PARTITIONS, timezone="UTC")
        targeting = build_targeting(settings, context)
        self.role = build(self.settings, context)
        add_servicers(self.role, self.server)
        self.show_targeting = lambda: add_servicers(targeting, self.targeting_server)
        if not hide_targeting:
            self.show_targeting()
        services = [context.apps, *targeting.services, *self.role.services]
        async with running_services(services):
            if not hide_targeting:
                await self.started()
            yield

    def role_context(self, registry: Channel | None = None) -> RoleContext:
        """Return the context with which roles are built; without `registry` no registry answers."""
        channels = {
            "targeting": [server.channel() for server in (self.targeting_server, *self.further_targeting)],
            "delivery": [self.server.channel()],
            "registry": [registry or LocalServer().channel()],
        }
        return RoleContext(
            self.log, self.clock, Peers(channels, TOPICS), MasterKey(bytes(32)).only(ROLE.keys), AppDirectory(self.log)
        )

    @contextlib.asynccontextmanager
    async def gateway(self, channel: Channel | None = None) -> AsyncIterator[GatewayClient]:
        """Attach a gateway for the duration of the block."""
        gateway = GatewayClient(channel or self.server.channel())
        try:
            yield gateway
        finally:
            gateway.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, KilledError):
                await gateway.task

    async def advance(self, seconds: float, steps: int = 1) -> None:
        """Advance the clock in steps, and run ready tasks after each."""
        for _ in range(steps):
            self.clock.move(seconds / steps)
            await run_ready_tasks()

    # --- parts of the running role

    def store(self) -> DeliveryStore:
        return self._tenure._store

    def events(self) -> EventWriter:
        return self._tenure._events

    def recorder(self) -> OutcomeRecorder:
        return next(service for service in self.role.services if isinstance(service, OutcomeRecorder))

    def starter(self) -> PushStarter:
        return next(service for service in self.role.services if isinstance(service, PushStarter))

    def snapshots(self) -> Snapshots:
        return next(service for service in self.role.services if isinstance(service, Snapshots))

    @property
    def _tenure(self) -> DeliveryTenure:
        return next(service for service in self.role.services if isinstance(service, DeliveryTenure))

    # --- the snapshot file

    def read_snapshot(self) -> bytes | None:
        return self._snapshot_file.read_bytes() if self._snapshot_file.exists() else None

    def write_snapshot(self, content: bytes | None) -> None:
        """Replace the snapshot file; None deletes it."""
        if content is None:
            self._snapshot_file.unlink(missing_ok=True)
        else:
            self._snapshot_file.write_bytes(content)

    @property
    def _snapshot_file(self) -> Path:
        return self.directory / "delivery" / SNAPSHOT

    # --- commands

    def push(self, *devices: NumberedDevice, **changes: Any) -> SendPush:
        """Return a push to these devices, or to everyone; with an `id_count` each entry of the list has its own id."""
        count = changes.get("id_count", 1)
        audience = listed_audience(*devices, own_ids=count > 1) if devices else Audience(everyone=Everyone())
        msgid = self.ids.take(count)
        fields = {
            "msgid": msgid,
            "id_count": 1,
            "appkey": APP,
            "platform": PLATFORM_ANDROID,
            "audience": audience,
            "message": Message(is_notif=True, content=f"message {msgid}"),
            "period_s": 3600,
        }
        return SendPush(**{**fields, **changes})

    async def command(self, *commands: SendPush | CancelPush, wait_applied: bool = True) -> list[int]:
        """Append commands as the edge does, wait until all is started that can be, and return their offsets."""
        offsets = await self.log.append([self._new_record(command) for command in commands])
        if wait_applied:
            await self.applied(offsets[-1])
            await self.started()
        return offsets

    async def applied(self, offset: int) -> None:
        """Wait as the edge does until delivery has applied this command."""
        peers = Peers({"delivery": [self.server.channel()]}, TOPICS)
        await peers.wait_applied([Position(topic=PUSH_COMMANDS.name, partition=0, offset=offset)])

    async def started(self) -> None:
        """Wait until the start of every push that delivery has applied is in the log, unless the push is held up."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.starter().is_idle or self.events().unwritten:
                await asyncio.sleep(0)

    def _new_record(self, command: SendPush | CancelPush) -> NewRecord:
        envelope = PushCommand(meta=Meta(event_id=event_id(), time_ms=self.clock.now_ms(), writer="edge"))
        (envelope.send if isinstance(command, SendPush) else envelope.cancel).CopyFrom(command)  # type: ignore[arg-type]
        return NewRecord(PUSH_COMMANDS.name, 0, str(command.msgid).encode(), envelope.SerializeToString())

    async def send(self, *devices: NumberedDevice, **changes: Any) -> int:
        """Send a push (see `push`) and return its msgid."""
        push = self.push(*devices, **changes)
        await self.command(push)
        return push.msgid

    async def cancel(self, msgid: int, appkey: str = APP) -> None:
        await self.command(CancelPush(msgid=msgid, appkey=appkey))

    async def register(
        self,
        *devices: NumberedDevice,
        stag: str | None = None,
        appkey: str = APP,
        channels: Sequence["AddressChannel.ValueType"] = (),
    ) -> None:
        """Append devices as the registry does, and wait until targeting has applied them."""
        new_records = [device_record(device, appkey, stag, channels) for device in devices]
        offsets = await self.log.append(new_records)
        peers = Peers({"targeting": [self.targeting_server.channel()], "registry": []}, TOPICS)
        await peers.wait_applied(
            Position(topic=new_record.topic, partition=new_record.partition, offset=offset)
            for new_record, offset in zip(new_records, offsets, strict=True)
        )

    # --- pauses

    async def pause(self, app: App = ANDROID_APP) -> None:
        """Pause the app as the registry does, and wait until delivery has applied it."""
        paused = App(pause=Pause(since_ms=self.clock.now_ms()))
        paused.MergeFrom(app)
        await self._change_app(paused)

    async def resume(self, app: App = ANDROID_APP) -> None:
        """Resume the app, and let delivery send what waited."""
        await self._change_app(app)
        await run_ready_tasks()

    async def _change_app(self, app: App) -> None:
        directory = AppDirectory(self.log)
        await until_ready(directory.run)
        fact = AppFact(meta=Meta(epoch=directory.epoch), app=app)
        (offset,) = await self.log.append([NewRecord(APPS.name, 0, app.appkey.encode(), fact.SerializeToString())])
        peers = Peers({"delivery": [self.server.channel()]}, TOPICS)
        assert not await peers.roles_behind(["delivery"], Position(topic=APPS.name, partition=0, offset=offset))

    # --- facts in the log

    async def records(self, partition: Partition) -> list[Record]:
        return await records_of(self.log, partition)

    async def facts(self, msgid: int) -> list[tuple[str, int]]:
        """Return (kind, partition) of the push's facts, partition by partition."""
        return [
            (str(fact.WhichOneof("fact")), fact.partition) for fact in await self.push_facts() if fact.msgid == msgid
        ]

    async def push_facts(self) -> list[PushFact]:
        """Return the facts of all pushes, without announcements of epochs."""
        facts = [decode(r) for n in range(PARTITIONS) for r in await self.records(Partition(PUSHES.name, n))]
        return [fact for fact in facts if fact.WhichOneof("fact")]

    async def start_counts(self) -> Counter[tuple[int, int]]:
        """Return the number of PushStarted facts by (msgid, partition)."""
        return Counter((f.msgid, f.partition) for f in await self.push_facts() if f.WhichOneof("fact") == "started")

    async def outcomes(self, *kinds: int) -> list[OutcomeRow]:
        """Return the outcomes of these kinds, or all."""
        records = [r for n in range(PARTITIONS) for r in await self.records(Partition(DELIVERIES.name, n))]
        return [row for record in records for row in outcome_rows(record) if not kinds or row.kind in kinds]

    async def expect_outcomes(self, *expected: OutcomeRow) -> None:
        """Wait for as many outcomes of the expected kinds, then assert that they are these."""
        kinds = {row.kind for row in expected}
        found: list[OutcomeRow] = []
        reader = await self.log.open({Partition(DELIVERIES.name, n): 0 for n in range(PARTITIONS)})
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < len(expected):
                found += [row for record in await reader.read() for row in outcome_rows(record) if row.kind in kinds]
        await reader.close()
        assert sorted(found) == sorted(expected)

    async def wait_facts(self, kind: str, count: int) -> None:
        """Wait until `count` facts of the kind are in `pushes`."""
        reader = await self.log.open({Partition(PUSHES.name, n): 0 for n in range(PARTITIONS)})
        async with asyncio.timeout(TIMEOUT_S):
            while count > 0:
                count -= sum(decode(record).WhichOneof("fact") == kind for record in await reader.read())
        await reader.close()

    async def verify(self) -> replay.ReplayComparison:
        """Compare the saved state with one rebuilt from the log."""
        partitions = open_state(self.settings, self.directory / "none", self.log).partitions
        ends = await self.log.ends(partitions)
        return await replay.verify(
            lambda directory, log: open_state(self.settings, directory, log),
            self.directory / "delivery",
            replay.ReplaySource(self.log, ends),
        )
