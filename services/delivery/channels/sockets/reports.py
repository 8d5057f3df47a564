"""Intake of devices' acknowledgements and reports, and the service that continues sending after a pause."""

import asyncio
from collections.abc import Callable

import numpy

from protos.delivery.v1.delivery_pb2 import OutcomeKind, Reports
from services.delivery import decide
from services.delivery.channels.sockets.fanout import Fanout
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.delivery.state.sent_messages import REPORTED_KINDS
from services.errors import InputError
from services.process.metrics import REPORTS_REFUSED

_RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


class ReportIntake:
    """Records the reports that `decide` accepts; the others are only counted.

    Pushes below `restored_offset`, an offset of push-commands, were read by an earlier process, which may have been
    killed before the log had all its SENT outcomes.
    """

    def __init__(
        self, state: DeliveryState, fanout: Fanout, recorder: OutcomeRecorder, restored_offset: Callable[[], int]
    ) -> None:
        self._state = state
        self._fanout = fanout
        self._recorder = recorder
        self._restored_offset = restored_offset

    def record(self, reports: Reports) -> None:
        """Queue the outcomes of these reports. InputError: the columns have different lengths."""
        for partition, number, msgid, kind, time_ms in _rows(reports):
            device = DeviceAddress(reports.appkey, partition, number)
            if kind == _RECEIVED:
                self._fanout.acknowledge(device, msgid)
                self._acknowledge(device, msgid, time_ms)
            elif kind in REPORTED_KINDS:
                self._report(device, msgid, kind, time_ms)

    def _acknowledge(self, device: DeviceAddress, msgid: int, time_ms: int) -> None:
        push, messages = self._state.push_of(msgid), self._state.sent_messages
        was_claimed = messages.was_claimed(device, msgid) and not messages.was_reported(device, msgid, _RECEIVED)
        sent = self._was_sent(push, device, msgid)
        if sent and device.appkey in self._state.apns_apps:
            self._report(device, msgid, _RECEIVED, time_ms)  # Apple has accepted it: its outcome is final already
        elif was_claimed or decide.accepts_acknowledgement(push, device, msgid, sent):
            self._recorder.record_final(device.partition, device.appkey, msgid, device.number, _RECEIVED, time_ms)
        else:
            REPORTS_REFUSED.labels("acknowledgement").inc()

    def _report(self, device: DeviceAddress, msgid: int, kind: int, time_ms: int) -> None:
        """Record a report once for each kind.

        A message that may be forgotten gets none: its earlier reports may be forgotten too.
        """
        push = self._state.push_of(msgid)
        messages = self._state.sent_messages
        is_repeated = messages.was_reported(device, msgid, kind) or self._recorder.has_unwritten_report(
            device.partition, msgid, device.number, kind
        )
        sent = self._was_sent(push, device, msgid)
        if sent is None and messages.was_sent(device, msgid) is None:
            sent = False
        if not is_repeated and decide.accepts_report(push, device, msgid, sent):
            self._recorder.record_report(device, msgid, kind, time_ms)
        else:
            REPORTS_REFUSED.labels("report").inc()

    def _was_sent(self, push: StartedPush | None, device: DeviceAddress, msgid: int) -> bool | None:
        """Return whether the device was sent the message, None when that is unknown."""
        sent = self._state.sent_messages.was_sent(device, msgid)
        if sent or push is None:
            return bool(sent)
        if not push.is_reported:
            return False
        if push.send.appkey == device.appkey and self._recorder.has_unwritten_sent(
            device.partition, msgid, device.number
        ):
            return True
        return None if push.offset < self._restored_offset() else sent


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
    sizes = len(reports.partitions), len(reports.numbers), len(reports.msgids), len(reports.times_ms)
    if sizes != (2 * count, 4 * count, 8 * count, 8 * count):
        raise InputError("reports: the columns are of unequal length")
    return zip(
        numpy.frombuffer(reports.partitions, "<u2", count).tolist(),
        numpy.frombuffer(reports.numbers, "<u4", count).tolist(),
        numpy.frombuffer(reports.msgids, "<u8", count).tolist(),
        reports.kinds,
        numpy.frombuffer(reports.times_ms, "<i8", count).tolist(),
        strict=True,
    )
