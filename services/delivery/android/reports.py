"""Acknowledgements and reports of devices, as gateways hand them on in batches."""

import asyncio

import numpy

from protos.delivery.v1.delivery_pb2 import OutcomeKind, Reports
from services.delivery import decide
from services.delivery.android.fanout import Fanout
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.addresses import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.runtime.errors import InputError
from services.runtime.process.clock import Clock

_RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


class ReportIntake:
    """Records the reports that `decide` accepts."""

    def __init__(self, state: DeliveryState, fanout: Fanout, recorder: OutcomeRecorder, clock: Clock) -> None:
        self._state = state
        self._fanout = fanout
        self._recorder = recorder
        self._clock = clock

    def record(self, reports: Reports) -> None:
        """Queue the outcomes of these reports. InputError: the columns have different lengths."""
        appkey = reports.appkey
        for partition, number, msgid, kind, time_ms in _rows(reports):
            push = self._state.push_of(msgid)
            device = DeviceAddress(appkey, partition, number)
            if kind == _RECEIVED:
                self._fanout.acknowledge(device, msgid)
                if decide.accepts_acknowledgement(push, device, msgid):
                    self._recorder.record_final(partition, appkey, msgid, number, kind, time_ms)
            elif kind in decide.REPORTED_KINDS and decide.accepts_report(push, device, msgid, self._clock.now_ms()):
                self._recorder.record(partition, appkey, msgid, number, kind, time_ms)


class ReportBatches:
    """The sequence number of the latest batch of reports that a gateway sent."""

    def __init__(self) -> None:
        self._sequence = 0
        self._has_new = asyncio.Event()

    def received(self, sequence: int) -> None:
        self._sequence = sequence
        self._has_new.set()

    async def next(self) -> int:
        """Wait for a batch that was not returned yet, and return the latest."""
        await self._has_new.wait()
        self._has_new.clear()
        return self._sequence


def _rows(reports: Reports) -> "zip[tuple[int, int, int, int, int]]":
    """Return rows of partition, device number, message id, kind and time. InputError: see `record`."""
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
