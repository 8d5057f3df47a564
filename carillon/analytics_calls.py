"""The operators' calls of analytics at the commands' socket of `carillon up`, passed on to the child process."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from protos.analytics.v1.analytics_pb2 import (
    AuditAppRequest,
    AuditAppResponse,
    AuditDeviceRequest,
    AuditDeviceResponse,
    AuditPushRequest,
    AuditPushResponse,
    CatchUpRequest,
    CatchUpResponse,
    ExportPushRequest,
    ExportPushResponse,
    ListAcksRequest,
    ListAcksResponse,
    StatisticsRequest,
    StatisticsResponse,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceServicer, AnalyticsServiceStub
from services.runtime.errors import UnavailableError
from services.runtime.rpc.channel import Channel, SocketChannel
from services.runtime.rpc.server import Context

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub


class ForwardedAnalytics(AnalyticsServiceServicer):
    """Passes on every call, with the time that the caller gives."""

    def __init__(self, channel: Channel) -> None:
        self._channel = cast(SocketChannel, channel)
        self._analytics: AnalyticsServiceAsyncStub = AnalyticsServiceStub(channel)

    async def AuditPush(self, request: AuditPushRequest, context: Context) -> AuditPushResponse:
        with self._plain_errors():
            return await self._analytics.AuditPush(request, timeout=context.time_remaining())

    async def AuditDevice(self, request: AuditDeviceRequest, context: Context) -> AuditDeviceResponse:
        with self._plain_errors():
            return await self._analytics.AuditDevice(request, timeout=context.time_remaining())

    async def AuditApp(self, request: AuditAppRequest, context: Context) -> AuditAppResponse:
        with self._plain_errors():
            return await self._analytics.AuditApp(request, timeout=context.time_remaining())

    async def ListAcks(self, request: ListAcksRequest, context: Context) -> ListAcksResponse:
        with self._plain_errors():
            return await self._analytics.ListAcks(request, timeout=context.time_remaining())

    async def Statistics(self, request: StatisticsRequest, context: Context) -> StatisticsResponse:
        with self._plain_errors():
            return await self._analytics.Statistics(request, timeout=context.time_remaining())

    async def CatchUp(self, request: CatchUpRequest, context: Context) -> CatchUpResponse:
        with self._plain_errors():
            return await self._analytics.CatchUp(request, timeout=context.time_remaining())

    async def ExportPush(
        self, requests: AsyncIterator[ExportPushRequest], context: Context
    ) -> AsyncGenerator[ExportPushResponse, None]:
        with self._plain_errors():
            async for response in self._analytics.ExportPush(requests):
                yield response

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Say in plain words that the child process is not there."""
        try:
            yield
        except UnavailableError:
            if self._channel.is_connected:
                raise
            raise UnavailableError("its process is starting; the service's log says why") from None
