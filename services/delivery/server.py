"""The gateways' side of delivery: one two-way stream each."""

import asyncio
from collections.abc import AsyncIterator

import numpy

from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse, OutcomeKind, Reports
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceServicer
from services.delivery.fanout import Fanout
from services.delivery.presence import Presence
from services.delivery.recorder import Recorder
from services.delivery.state import DeliveryState
from services.delivery.stream import GatewayStream
from services.runtime.clock import Clock
from services.runtime.ids import issued_ms
from services.runtime.logs import logger
from services.runtime.rpc import Context

_LATEST_REPORT_MS = 8 * 86_400_000


class DeliveryServicer(DeliveryServiceServicer):
    """Takes connections, acknowledgements and reports; hands out messages. Gateways wait until `restored`."""

    def __init__(
        self,
        state: DeliveryState,
        presence: Presence,
        fanout: Fanout,
        recorder: Recorder,
        clock: Clock,
        restored: asyncio.Event,
    ) -> None:
        self._state = state
        self._presence = presence
        self._fanout = fanout
        self._recorder = recorder
        self._clock = clock
        self._restored = restored

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        await self._restored.wait()
        stream = GatewayStream()
        intake = asyncio.create_task(self._take(stream, requests))
        try:
            while not intake.done():
                outgoing = asyncio.create_task(stream.take())
                await asyncio.wait([intake, outgoing], return_when=asyncio.FIRST_COMPLETED)
                if not outgoing.done():
                    outgoing.cancel()
                    break
                yield outgoing.result()
            if intake.done():
                intake.result()
        finally:
            intake.cancel()
            self._presence.drop(stream)

    async def _take(self, stream: GatewayStream, requests: AsyncIterator[AttachRequest]) -> None:
        async for request in requests:
            if request.gateway:
                logger.info("a gateway attached", gateway=request.gateway)
            for connection in request.disconnected:
                self._presence.disconnect(stream, connection)
            self._fanout.connected(stream, request.connected)
            for reports in request.reports:
                self._report(reports)
            await self._recorder.room()

    def _report(self, reports: Reports) -> None:
        rows = zip(
            numpy.frombuffer(reports.partitions, "<u2").tolist(),
            numpy.frombuffer(reports.numbers, "<u4").tolist(),
            numpy.frombuffer(reports.msgids, "<u8").tolist(),
            numpy.frombuffer(reports.kinds, "u1").tolist(),
            numpy.frombuffer(reports.times_ms, "<i8").tolist(),
            strict=True,
        )
        for partition, number, msgid, kind, time_ms in rows:
            if self._believes(reports.appkey, partition, number, msgid, kind):
                self._recorder.add(partition, reports.appkey, msgid, number, kind, time_ms)

    def _believes(self, appkey: str, partition: int, number: int, msgid: int, kind: int) -> bool:
        """A device reports only on what was meant for it; the last word on a push that ended long ago is no news."""
        push = self._state.push_of(msgid)
        if push is None:
            age_ms = self._clock.now_ms() - issued_ms(msgid)
            return kind != OutcomeKind.OUTCOME_KIND_RECEIVED and 0 <= age_ms <= _LATEST_REPORT_MS
        part = push.parts.get(partition)
        if push.send.appkey != appkey or part is None:
            return False
        if kind == OutcomeKind.OUTCOME_KIND_RECEIVED:
            return msgid in part.pending_ids(number)
        return part.addresses(number)
