"""The gateways' side of delivery, one two-way stream each, and the doors': what became of a broadcast."""

import asyncio
from collections.abc import AsyncIterator

import numpy

from protos.delivery.v1.delivery_pb2 import (
    AttachRequest,
    AttachResponse,
    GetBroadcastRequest,
    GetBroadcastResponse,
    OutcomeKind,
    Reports,
)
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceServicer
from services.delivery.android.fanout import Fanout
from services.delivery.android.gateway_stream import GatewayStream
from services.delivery.android.presence import Device
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.audience_parts import BitmapPart, listed_targets
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import Push
from services.domain.ids import issued_ms
from services.runtime.errors import InputError, NotFoundError
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.rpc.transport import Context

_AHEAD_MS = 60_000
_LATEST_REPORT_MS = 400 * 86_400_000  # a timed push has its id up to a year before it is sent
_RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED
_REPORTED = frozenset(
    {OutcomeKind.OUTCOME_KIND_SHOWN, OutcomeKind.OUTCOME_KIND_CLICKED, OutcomeKind.OUTCOME_KIND_DISMISSED}
)


class HandedIn:
    """The latest batch of reports that a gateway handed in."""

    def __init__(self) -> None:
        self._sequence = 0
        self._news = asyncio.Event()

    def note(self, sequence: int) -> None:
        self._sequence = sequence
        self._news.set()

    async def next(self) -> int:
        await self._news.wait()
        self._news.clear()
        return self._sequence


class DeliveryServicer(DeliveryServiceServicer):
    """Takes connections, acknowledgements and reports; hands out messages. Callers wait until `restored`."""

    def __init__(
        self,
        state: DeliveryState,
        fanout: Fanout,
        recorder: OutcomeRecorder,
        clock: Clock,
        restored: asyncio.Event,
    ) -> None:
        self._state = state
        self._fanout = fanout
        self._recorder = recorder
        self._clock = clock
        self._restored = restored

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        await self._restored.wait()
        stream = GatewayStream()
        handed_in = HandedIn()
        intake = asyncio.create_task(self._take_in(stream, handed_in, requests))
        intake.add_done_callback(lambda _: stream.end())
        confirming = asyncio.create_task(self._confirm(stream, handed_in))
        try:
            while (response := await stream.take()) is not None:
                yield response
            await intake
        finally:
            intake.cancel()
            confirming.cancel()
            self._fanout.lost(stream)

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        await self._restored.wait()
        found = self._state.broadcasts.get(request.msgid)
        if found is None or found.appkey != request.appkey or found.expires_ms <= self._clock.now_ms():
            raise NotFoundError("the app has no such broadcast that has not expired")
        return GetBroadcastResponse(cancelled=found.is_cancelled)

    async def _take_in(
        self, stream: GatewayStream, handed_in: HandedIn, requests: AsyncIterator[AttachRequest]
    ) -> None:
        """What devices said comes before who left and who came: nobody is sent what he has just acknowledged."""
        async for request in requests:
            if request.gateway:
                logger.info("a gateway attached", gateway=request.gateway)
            for reports in request.reports:
                self._report(reports)
            if request.sequence:
                handed_in.note(request.sequence)
            self._fanout.left(stream, request.disconnected)
            self._fanout.connected(stream, request.connected)
            self._fanout.refill()
            await self._recorder.room()

    async def _confirm(self, stream: GatewayStream, handed_in: HandedIn) -> None:
        """Tell the gateway what it need not hand in again."""
        while True:
            sequence = await handed_in.next()
            await self._recorder.recorded()
            stream.confirm(sequence)

    def _report(self, reports: Reports) -> None:
        appkey = reports.appkey
        for partition, number, msgid, kind, time_ms in _rows(reports):
            push = self._state.push_of(msgid)
            if kind == _RECEIVED:
                self._fanout.acknowledged(Device(appkey, partition, number), msgid)
                if push and _is_pending(push, appkey, partition, msgid, number):
                    self._recorder.settle(partition, appkey, msgid, number, kind, time_ms)
            elif kind in _REPORTED and self._believes(push, appkey, partition, msgid, number):
                self._recorder.add(partition, appkey, msgid, number, kind, time_ms)

    def _believes(self, push: Push | None, appkey: str, partition: int, msgid: int, number: int) -> bool:
        """A device reports only on what was meant for it. Of a push that is over only the age is known."""
        if push is not None:
            return push.send.appkey == appkey and _addresses(push, partition, msgid, number)
        return -_AHEAD_MS <= self._clock.now_ms() - issued_ms(msgid) <= _LATEST_REPORT_MS


def _rows(reports: Reports) -> "zip[tuple[int, int, int, int, int]]":
    """InputError: the columns do not fit together."""
    count = len(reports.kinds)
    try:
        return zip(
            numpy.frombuffer(reports.partitions, "<u2", count).tolist(),
            numpy.frombuffer(reports.numbers, "<u4", count).tolist(),
            numpy.frombuffer(reports.msgids, "<u8", count).tolist(),
            reports.kinds,
            numpy.frombuffer(reports.times_ms, "<i8", count).tolist(),
            strict=True,
        )
    except ValueError as error:
        raise InputError("reports: the columns are of unequal length") from error


def _is_pending(push: Push, appkey: str, partition: int, msgid: int, number: int) -> bool:
    part = push.part(partition)
    return part is not None and push.send.appkey == appkey and msgid in part.pending_ids(number)


def _addresses(push: Push, partition: int, msgid: int, number: int) -> bool:
    """Where everybody is done with a broadcast, its audience is not known any more."""
    part = push.part(partition)
    if not push.is_listed:
        return number in part.audience if isinstance(part, BitmapPart) else True
    return msgid in listed_targets(push.send).get(partition, {}).get(number, ())
