"""A channel of one app: its sender behind the queue of all push services, without roles around it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from pyroaring import BitMap

from protos.push.v1.push_pb2 import AndroidStyle, ChannelOptions, Importance, Message, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App
from protos.registry.v1.devices_pb2 import Address, DeviceCommand
from protos.registry.v1.registry_pb2 import (
    GetAddressesRequest,
    GetAddressesResponse,
    GetTokensRequest,
    GetTokensResponse,
)
from services.delivery.channels import PushService
from services.delivery.channels.health import Alarms
from services.delivery.channels.service_channel import ServiceChannel
from services.delivery.state.audience_parts import BitmapAudience
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.command_writer import Command
from services.process.clock import ManualClock
from testkit.services import TIMEOUT_S

APP = "1"
START_MS = 1_800_000_000_000
MSGID = 7
NOTIFICATION = Message(is_notif=True, content="from 14:00", android=AndroidStyle(title="Rain"))


class ChannelHarness:
    """The channel of an app whose devices have the addresses of `start`, and what it records.

    `outcomes`: (kind, reason) of each device. `removed`: the commands that remove addresses.
    """

    def __init__(self, service: PushService[Any, Any, Any], clock: ManualClock) -> None:
        self.clock = clock
        self.addresses: list[str] = []
        self.outcomes: dict[int, tuple[int, str]] = {}
        self.removed: list[DeviceCommand] = []
        self._number = service.channel
        stubs: Any = SimpleNamespace(
            append=self._append,
            owner=lambda role, partition: SimpleNamespace(unary_unary=lambda *_, **__: self._registry),
            get=lambda appkey: App(appkey=appkey),
            is_paused=lambda appkey: False,
            pauses_changed=asyncio.Event(),
            record_final=self._record,
            has_unwritten_final=lambda *message: False,
            wait_capacity=lambda: asyncio.sleep(0),
        )
        self.channel: ServiceChannel[Any, Any, Any] = ServiceChannel(
            service, stubs, DeliveryState([0]), stubs, stubs, stubs, Alarms(clock), clock, 1
        )

    def start(
        self,
        *addresses: str,
        period_s: int = 3600,
        msgid: int = MSGID,
        message: Message = NOTIFICATION,
        importance: "Importance.ValueType | None" = None,
    ) -> None:
        """Start a push to further devices, which have these addresses."""
        first = len(self.addresses)
        self.addresses += addresses
        options = ChannelOptions(importance=importance) if importance is not None else None
        send = SendPush(msgid=msgid, appkey=APP, platform=PLATFORM_ANDROID, message=message, channel=options)
        push = StartedPush(send, 0, START_MS + 1000 * period_s)
        push.active_parts[0] = BitmapAudience(msgid, BitMap(range(first, len(self.addresses))), BitMap())
        self.channel.start(push, [0])

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not holds():
                await asyncio.sleep(0)

    async def advance_until(self, holds: Callable[[], bool], step_s: int = 1) -> int:
        """Move the clock step by step until the condition holds; return how many seconds it took."""
        for second in range(0, 1000, step_s):
            for _ in range(50):
                if holds():
                    return second
                await asyncio.sleep(0.0002)
            self.clock.move(step_s)
        raise AssertionError("it does not hold")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        ready = asyncio.Event()
        running = asyncio.create_task(self.channel.run(ready))
        await ready.wait()
        try:
            yield
        finally:
            for app in self.channel._apps.values():
                app._window.empty.set()  # nothing to wait for at the stop
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _append(self, commands: list[Command]) -> None:
        self.removed += [command.envelope for command in commands]

    async def _registry(
        self, request: GetTokensRequest | GetAddressesRequest, **_: object
    ) -> GetTokensResponse | GetAddressesResponse:
        if isinstance(request, GetAddressesRequest):
            found = [Address(channel=self._number, address=self.addresses[number]) for number in request.numbers]
            return GetAddressesResponse(addresses=found)
        tokens = [f"device-{number}" for number in request.numbers]
        return GetTokensResponse(tokens=tokens, active_ms=[0 for _ in request.numbers])

    def _record(
        self,
        partition: int,
        appkey: str,
        msgid: int,
        number: int,
        kind: int,
        at: int,
        reason: str,
        badge: int | None,
        service: int,
        *,
        carries_msgid: bool,
    ) -> None:
        assert (service, carries_msgid) == (self._number, False)
        assert number not in self.outcomes
        self.outcomes[number] = kind, reason
