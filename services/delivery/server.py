"""The gRPC service of delivery: one two-way stream for each gateway process, and queries of other roles."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping

from protos.delivery.v1.delivery_pb2 import (
    AttachRequest,
    AttachResponse,
    CheckAliasesRequest,
    CheckAliasesResponse,
    CheckChannelRequest,
    CheckChannelResponse,
    DroppedMessages,
    GetAppleStateRequest,
    GetAppleStateResponse,
    GetBroadcastRequest,
    GetBroadcastResponse,
    HasCapacityRequest,
    HasCapacityResponse,
    MostlyBadTokens,
    RecordReportsRequest,
    RecordReportsResponse,
    RefusedKey,
    StoppedChannel,
)
from protos.delivery.v1.delivery_pb2_grpc import (
    AliasesServiceServicer,
    AppleStateServiceServicer,
    CapacityServiceServicer,
    ChannelsServiceServicer,
    DeliveryServiceServicer,
    ReportsServiceServicer,
)
from protos.registry.v1.apps_pb2 import App, Channel
from services.delivery.alias_changes import AliasChanges
from services.delivery.channels.health import Stopped
from services.delivery.channels.sockets.fanout import Fanout
from services.delivery.channels.sockets.gateway_stream import GatewayStream
from services.delivery.channels.sockets.reports import ReportBatches, ReportIntake
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.bad_tokens import BadTokens
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.tenure import DeliveryTenure
from services.delivery.waiting_pushes import WaitingBytes
from services.domain.addresses import channel_name
from services.domain.apps import AppDirectory
from services.errors import InputError, NotFoundError
from services.net.rpc.server import Context
from services.process.clock import Clock
from services.process.logs import logger


class DeliveryServicer(DeliveryServiceServicer):
    """Serves gateways and the edge as the owner of the partitions.

    Calls wait while this process takes over, and until the pushes that an earlier process left have started
    (`has_resumed`).
    """

    def __init__(
        self,
        state: DeliveryState,
        fanout: Fanout,
        intake: ReportIntake,
        recorder: OutcomeRecorder,
        apps: AppDirectory,
        clock: Clock,
        tenure: DeliveryTenure,
        has_resumed: asyncio.Event,
    ) -> None:
        self._state = state
        self._fanout = fanout
        self._intake = intake
        self._recorder = recorder
        self._apps = apps
        self._clock = clock
        self._tenure = tenure
        self._has_resumed = has_resumed

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        await self._tenure.wait()
        await self._has_resumed.wait()
        stream = GatewayStream(self._apps.is_paused, self._fanout.has_new_capacity.set)
        batches = ReportBatches()
        parts = [
            asyncio.create_task(self._receive(stream, batches, requests)),
            asyncio.create_task(self._confirm(stream, batches)),
        ]
        for part in parts:
            part.add_done_callback(lambda _: stream.end())
        try:
            while (response := await stream.next_response()) is not None:
                yield response
            for part in parts:
                if part.done():
                    part.result()
        finally:
            for part in parts:
                part.cancel()
            self._fanout.remove_gateway(stream)

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        await self._tenure.wait()
        await self._has_resumed.wait()
        self._tenure.check()
        found = self._state.broadcasts.unexpired(request.msgid, request.appkey, self._clock.now_ms())
        if found is None:
            raise NotFoundError("the app has no such broadcast that has not expired")
        return GetBroadcastResponse(cancelled=found.is_cancelled, is_starting=request.msgid in self._state.requested)

    async def _receive(
        self, stream: GatewayStream, batches: ReportBatches, requests: AsyncIterator[AttachRequest]
    ) -> None:
        """Handle the gateway's requests; reports first, so that no device is sent what it has just acknowledged."""
        async for request in requests:
            if request.gateway:
                logger.info("a gateway attached", gateway=request.gateway)
            for reports in request.reports:
                self._intake.record(reports)
            if request.sequence:
                batches.received(request.sequence)
            self._fanout.disconnect(stream, request.disconnected)
            self._fanout.connect(stream, request.connected)
            self._fanout.refill()
            await self._recorder.wait_capacity()

    async def _confirm(self, stream: GatewayStream, batches: ReportBatches) -> None:
        """Confirm batches of reports once they are in the log."""
        while True:
            sequence = await batches.next()
            await self._recorder.wait_recorded()
            stream.confirm(sequence)


class CapacityServicer(CapacityServiceServicer):
    """Tells whether an app has capacity among the pushes that wait to be started."""

    def __init__(self, waiting_bytes: WaitingBytes, tenure: DeliveryTenure) -> None:
        self._waiting_bytes = waiting_bytes
        self._tenure = tenure

    async def HasCapacity(self, request: HasCapacityRequest, context: Context) -> HasCapacityResponse:
        self._tenure.check()
        return HasCapacityResponse(has_capacity=self._waiting_bytes.has_capacity(request.appkey))


class AppleStateServicer(AppleStateServiceServicer):
    """Tells whether Apple's answers point to wrong settings of an iOS app, and where a simulator answers instead."""

    def __init__(
        self,
        bad_tokens: BadTokens,
        stopped: Callable[[str], Stopped | None],
        channels: "Mapping[Channel.ValueType, Callable[[str], Stopped | None]]",
        simulators: "Collection[Channel.ValueType]",
        tenure: DeliveryTenure,
    ) -> None:
        """`stopped`: since when and why an app's pushes wait, because Apple does not accept its key; `channels`: the
        same for the channels of Android apps.

        `simulators`: the channels in the place of whose services a simulator answers.
        """
        self._simulators = simulators
        self._bad_tokens = bad_tokens
        self._stopped = stopped
        self._channels = channels
        self._tenure = tenure

    async def GetAppleState(self, request: GetAppleStateRequest, context: Context) -> GetAppleStateResponse:
        await self._tenure.wait()
        self._tenure.check()
        bad = self._bad_tokens.mostly_bad(request.appkey)
        stopped = self._stopped(request.appkey)
        return GetAppleStateResponse(
            bad_tokens=MostlyBadTokens(**bad._asdict()) if bad else None,
            refused_key=RefusedKey(**stopped._asdict()) if stopped else None,
            simulators=self._simulators,
            stopped=[
                StoppedChannel(channel=channel, **found._asdict())
                for channel, stopped_of in self._channels.items()
                if (found := stopped_of(request.appkey)) is not None
            ],
        )


class ReportsServicer(ReportsServiceServicer):
    """Takes reports from front ends as the owner of the partitions; calls wait as those of `DeliveryServicer` do."""

    def __init__(
        self, intake: ReportIntake, recorder: OutcomeRecorder, tenure: DeliveryTenure, has_resumed: asyncio.Event
    ) -> None:
        self._intake = intake
        self._recorder = recorder
        self._tenure = tenure
        self._has_resumed = has_resumed

    async def RecordReports(self, request: RecordReportsRequest, context: Context) -> RecordReportsResponse:
        await self._tenure.wait()
        await self._has_resumed.wait()
        self._tenure.check()
        await self._recorder.wait_capacity()
        for reports in request.reports:
            self._intake.record(reports)
        await self._recorder.wait_recorded()
        self._tenure.check()
        return RecordReportsResponse()


class ChannelsServicer(ChannelsServiceServicer):
    """Tries out the push services of apps, as the owner of the partitions. `checks`: by channel."""

    def __init__(
        self,
        checks: Mapping["Channel.ValueType", Callable[[App], Awaitable[CheckChannelResponse]]],
        apps: AppDirectory,
        tenure: DeliveryTenure,
    ) -> None:
        self._checks = checks
        self._apps = apps
        self._tenure = tenure

    async def CheckChannel(self, request: CheckChannelRequest, context: Context) -> CheckChannelResponse:
        self._tenure.check()
        check, app = self._checks.get(request.channel), self._apps.get(request.appkey)
        if check is None:
            raise InputError(f"channel must be one of {', '.join(map(channel_name, self._checks))}")
        if app is None:
            raise NotFoundError(f"there is no app {request.appkey}")
        return await check(app)


class AliasesServicer(AliasesServiceServicer):
    """Serves front ends as the owner of the partitions; calls wait as those of `DeliveryServicer` do."""

    def __init__(self, changes: AliasChanges, tenure: DeliveryTenure, has_resumed: asyncio.Event) -> None:
        self._changes = changes
        self._tenure = tenure
        self._has_resumed = has_resumed

    async def CheckAliases(self, request: CheckAliasesRequest, context: Context) -> CheckAliasesResponse:
        await self._tenure.wait()
        await self._has_resumed.wait()
        self._tenure.check()
        devices = [DeviceAddress(each.appkey, each.partition, each.number) for each in request.devices]
        dropped = await self._changes.check(devices)
        self._tenure.check()
        return CheckAliasesResponse(dropped=[DroppedMessages(msgids=msgids) for msgids in dropped])
