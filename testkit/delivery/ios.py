"""Harness of iOS delivery: delivery and registry with one iOS app, and a simulator whose answers a test controls."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from protos.gateway.v1.sessions_pb2 import SessionBatch, SessionEvent, SessionEventKind, SessionFact
from protos.push.v1.push_pb2 import IosStyle, Message
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import DeviceCommand, RegisterDevice
from protos.registry.v1.registry_pb2 import CreateAppRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Position
from services.apns_simulator.requests import ReceivedPush
from services.apns_simulator.server import ApnsSimulator
from services.delivery.channels.service_channel import ServiceChannel
from services.domain.ids import event_id
from services.domain.topics import DEVICE_COMMANDS, SESSIONS, TOPICS, device_key
from services.log.port import NewRecord, Partition
from services.log.topics import partition_of
from services.net.rpc.local import LocalServer
from services.push_simulator.connection import HttpRequest, ScriptedReply
from services.registry.main import build as build_registry
from services.registry.settings import RegistrySettings
from services.replica.peers import Peers
from testkit.delivery.records import PARTITIONS, NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.services import TIMEOUT_S, add_servicers, running_services

VALID_TOKENS = [f"{n:02x}" * 32 for n in range(6)]
UNREGISTERED_TOKEN = "dead" + "0" * 60
MALFORMED_TOKEN = "no token of Apple's"


class ControlledSimulator:
    """The simulator of the running delivery, with answers set by the test.

    `refusals` are the answers to the next requests; `all_refused` is set when the last of them is used.
    `unknown_tokens` get BadDeviceToken.
    """

    def __init__(self, simulator: ApnsSimulator) -> None:
        self.simulator = simulator
        self.refusals: list[tuple[int, str]] = []
        self.all_refused = asyncio.Event()
        self.request_count = 0
        self.unknown_tokens: set[str] = set()
        self._reply_to = simulator.reply_to
        simulator.reply_to = self._controlled_reply  # type: ignore[method-assign]

    def _controlled_reply(self, request: HttpRequest) -> ScriptedReply:
        self.request_count += 1
        if any((request.header(":path") or "").endswith(token) for token in self.unknown_tokens):
            return ScriptedReply([(":status", "400")], b'{"reason":"BadDeviceToken"}')
        if not self.refusals:
            return self._reply_to(request)
        status, reason = self.refusals.pop(0)
        if not self.refusals:
            self.all_refused.set()
        return ScriptedReply([(":status", str(status))], msgspec.json.encode({"reason": reason}))

    @property
    def received(self) -> Sequence[ReceivedPush]:
        return self.simulator.received

    @property
    def tokens(self) -> list[str]:
        """Tokens of the accepted pushes, in order."""
        return [push.token for push in self.received]

    def badges(self, token: str) -> list[int]:
        """Badges that the token was sent, in order."""
        return [push.body["aps"]["badge"] for push in self.received if push.token == token]  # type: ignore[index]

    async def wait_accepted(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self.simulator.wait_for(count)

    async def wait_requests(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.request_count < count:
                await asyncio.sleep(0)


class IosHarness:
    """Delivery, targeting and registry with one iOS app; `show_registry` makes a hidden registry available."""

    def __init__(self, delivery: DeliveryHarness) -> None:
        self.delivery = delivery
        self.appkey = ""
        self.show_registry: Callable[[], None] = lambda: None
        self._registry = LocalServer()

    @contextlib.asynccontextmanager
    async def running(
        self, hide_registry: bool = False, has_simulator: bool = True
    ) -> AsyncIterator[ControlledSimulator]:
        """Run the roles; `has_simulator` False: delivery's settings send pushes elsewhere."""
        self._registry = LocalServer()
        context = self.delivery.role_context()
        settings = RegistrySettings(data_dir=str(self.delivery.directory), partitions=PARTITIONS)
        registry = build_registry(settings, context)

        def show_registry() -> None:
            add_servicers(registry, self._registry)

        self.show_registry = show_registry
        if not hide_registry:
            self.show_registry()
        async with (
            running_services([context.apps, *registry.services]),
            self.delivery.running(registry=self._registry.channel()),
        ):
            simulators = [service for service in self.delivery.role.services if isinstance(service, ApnsSimulator)]
            assert len(simulators) == has_simulator
            yield ControlledSimulator(simulators[0] if simulators else ApnsSimulator(self.delivery.clock))

    @property
    def registry(self) -> Any:
        return RegistryServiceStub(self._registry.channel())

    @property
    def in_progress(self) -> bool:
        """Whether a push is being sent or waits for a retry."""
        return any(
            not service.is_idle for service in self.delivery.role.services if isinstance(service, ServiceChannel)
        )

    # --- app and devices

    async def create_app(self) -> None:
        request = CreateAppRequest(platform=PLATFORM_IOS, name="Weather", package="com.example.weather")
        self.appkey = (await self.registry.CreateApp(request)).app.appkey

    async def register(self, *tokens: str) -> list[NumberedDevice]:
        await self._append(*(self._registration(token) for token in tokens))
        return [await self.device(token) for token in tokens]

    async def device(self, token: str) -> NumberedDevice:
        (device,) = (await self.registry.GetDevices(GetDevicesRequest(appkey=self.appkey, tokens=[token]))).devices
        return NumberedDevice(device.partition, device.number)

    async def open_app(self, token: str, device: NumberedDevice) -> None:
        """Record that the user opened the app; returns when the registry has applied it."""
        event = SessionEvent(
            appkey=self.appkey,
            number=device.number,
            kind=SessionEventKind.SESSION_EVENT_KIND_APP_OPENED,
            time_ms=self.delivery.clock.now_ms(),
        )
        fact = SessionFact(meta=Meta(event_id=event_id()), batch=SessionBatch(events=[event]))
        (offset,) = await self.delivery.log.append(
            [NewRecord(SESSIONS.name, device.partition, b"", fact.SerializeToString())]
        )
        await self._peers.wait_applied([Position(topic=SESSIONS.name, partition=device.partition, offset=offset)])

    async def wait_commands_applied(self) -> None:
        """Return once the registry and targeting have applied every device command in the log."""
        partitions = [Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)]
        ends = await self.delivery.log.ends(partitions)
        await self._peers.wait_applied(
            Position(topic=topic, partition=number, offset=end - 1) for (topic, number), end in ends.items() if end
        )

    def _registration(self, token: str) -> DeviceCommand:
        meta = Meta(event_id=event_id(), time_ms=self.delivery.clock.now_ms(), writer="edge")
        register = RegisterDevice(platform=PLATFORM_IOS)
        return DeviceCommand(meta=meta, appkey=self.appkey, token=token, register=register)

    async def _append(self, *commands: DeviceCommand) -> None:
        new_records = []
        for command in commands:
            key = device_key(command.appkey, command.token)
            partition = partition_of(key, PARTITIONS)
            new_records.append(NewRecord(DEVICE_COMMANDS.name, partition, key, command.SerializeToString()))
        await self.delivery.log.append(new_records)
        await self.wait_commands_applied()

    @property
    def _peers(self) -> Peers:
        channels = {"registry": [self._registry.channel()], "targeting": [self.delivery.targeting_server.channel()]}
        return Peers(channels, TOPICS)

    # --- pushes and time

    async def send(self, *devices: NumberedDevice, **changes: Any) -> int:
        """Send a notification with badge 3 to the devices, or to all; `changes` are fields of SendPush."""
        message = Message(is_notif=True, content="hello", ios=IosStyle(badge=3))
        given = {"appkey": self.appkey, "platform": PLATFORM_IOS, "message": message}
        return await self.delivery.send(*devices, **{**given, **changes})

    async def wait_started(self) -> None:
        """Return once a push is in progress; it must not end before time advances."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.in_progress:
                await asyncio.sleep(0)

    async def advance_until(self, holds: Callable[[], bool], seconds: int = 3000) -> None:
        """Advance the clock second by second until the condition holds."""
        for _ in range(seconds):
            if holds():
                return
            await self.delivery.advance(1)
        assert holds()
