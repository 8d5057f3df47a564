"""Handles the frames of a welcomed device: acknowledgements, reports, activity, and requests."""

from collections.abc import Callable
from functools import partial

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind
from services.domain.device_protocol.answers import Error, Ok, Pong, error_answer
from services.domain.device_protocol.commands import activity_kind, report_kind
from services.domain.device_protocol.frames import (
    Ack,
    Activity,
    Change,
    Frame,
    GetDeviceRequest,
    Hello,
    MalformedError,
    Ping,
    Report,
    decode_frame,
    request_id,
)
from services.errors import CarillonError, InputError
from services.gateway.connection import DeviceConnection, Handler
from services.gateway.connections import ConnectionTable, DeviceSession
from services.gateway.device_requests import DeviceRequests
from services.gateway.left_devices import LeftDevices
from services.gateway.rules import MAX_UNSENT_REPORTS, idle_ms
from services.gateway.session_writer import Confirm, SessionWriter
from services.gateway.uplink import UnreportedQueue
from services.process import push_traces
from services.process.metrics import CONNECTIONS, UNSENT_REPORTS_DROPPED

TOO_MANY_UNSENT = "too many acknowledgements and reports of pushes that were not sent to this device"
UNEXPECTED_HELLO = "hello is the first frame, and comes once"


class SessionHandler(Handler[DeviceConnection]):
    """Handles the frames of welcomed devices, and reports sessions to delivery and to the log.

    `unreported` has one queue for each shard of delivery; shard i of n has the partitions p with p mod n = i.
    """

    def __init__(
        self,
        connections: ConnectionTable[DeviceConnection],
        requests: DeviceRequests,
        writer: SessionWriter,
        unreported: list[UnreportedQueue],
        left: LeftDevices,
        now_ms: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._requests = requests
        self._writer = writer
        self._unreported = unreported
        self._left = left
        self._now_ms = now_ms

    def start(self, connection: DeviceConnection, session: DeviceSession, heartbeat_s: int) -> None:
        """Begin the session; an older connection of the same device is replaced."""
        connection.start_session(session, self, idle_ms(heartbeat_s))
        older = self._connections.add(session, connection)
        CONNECTIONS.inc()
        if older is not None:
            older.goodbye("replaced")
        self._queue(session).connected(session)
        self._writer.record(session, SessionEventKind.SESSION_EVENT_KIND_OPENED)

    def received(self, connection: DeviceConnection, payload: bytes) -> None:
        frame = decode_or_answer(connection, payload)
        if frame is not None and connection.session is not None:
            self._handle(connection, connection.session, frame)

    async def handle_early(self, connection: DeviceConnection, frame: Frame) -> None:
        """Handle a frame that came between hello and welcome; drop it when the device was not welcomed."""
        if connection.session is not None:
            self._handle(connection, connection.session, frame)

    def answered_ping(self, connection: DeviceConnection, payload: bytes) -> None:
        if connection.session is not None and self._requests.answered_ping(connection.session, payload):
            connection.acknowledged([0])

    def closing(self, connection: DeviceConnection, reason: str) -> None:
        session = connection.session
        if session is not None and self._connections.remove(session):
            CONNECTIONS.dec()
            self._requests.forget(session)
            if reason != "draining":  # such a device was told to come again, perhaps because of its number
                self._left.add(session)
            self._queue(session).disconnected(session)
            self._writer.record(session, SessionEventKind.SESSION_EVENT_KIND_CLOSED, reason)

    def _handle(self, connection: DeviceConnection, session: DeviceSession, frame: Frame) -> None:
        match frame:
            case Ack(msgids=msgids):
                unsent = connection.acknowledged(msgids)
                push_traces.acknowledged(msgids)
                self._report(connection, session, msgids, unsent, OutcomeKind.OUTCOME_KIND_RECEIVED)
            case Report(event=event, msgid=msgid):
                unsent = 0 if connection.sent.is_unacknowledged(msgid) else 1
                confirm = _confirmation(connection, frame.id)
                self._report(connection, session, [msgid], unsent, report_kind(event), confirm)
            case Ping():
                connection.send(Pong())
            case Activity(event=event):
                self._writer.record(session, activity_kind(event), confirm=_confirmation(connection, frame.id))
                connection.has_unapplied_activity = True
            case Hello():
                connection.goodbye("protocol", UNEXPECTED_HELLO)
            case _ if connection.closing_ms is None:
                connection.submit(partial(self._answer, connection, session, frame))
            case _:
                pass  # it could not be answered any more, so the device sends it again to the next gateway

    def _report(
        self,
        connection: DeviceConnection,
        session: DeviceSession,
        msgids: list[int],
        unsent: int,
        kind: "OutcomeKind.ValueType",
        confirm: Confirm | None = None,
    ) -> None:
        """Hand the report to delivery; `unsent` of the messages are not known to have been sent to the device."""
        connection.unsent_reports += unsent
        if unsent and connection.unsent_reports > MAX_UNSENT_REPORTS:
            UNSENT_REPORTS_DROPPED.inc(unsent)
            connection.goodbye("protocol", TOO_MANY_UNSENT)
        else:
            self._queue(session).report(session, msgids, kind, self._now_ms(), unsent == 0, confirm)

    async def _answer(
        self, connection: DeviceConnection, session: DeviceSession, request: Change | GetDeviceRequest
    ) -> None:
        """Carry out a request once the activity that the device reported before it is applied: its ok covers both."""
        try:
            if connection.has_unapplied_activity:
                connection.has_unapplied_activity = False
                await self._writer.wait_applied(session)
        except CarillonError as error:
            connection.has_unapplied_activity = True
            connection.send(error_answer(request.id, error))
        else:
            connection.send(await self._requests.answer(request, connection, session))

    def _queue(self, session: DeviceSession) -> UnreportedQueue:
        return self._unreported[session.partition % len(self._unreported)]


def _confirmation(connection: DeviceConnection, number: int | None) -> Confirm | None:
    """Return a call that confirms the device's report of this number; None for one without a number."""
    return None if number is None else partial(connection.send, Ok(id=number))


def decode_or_answer(connection: DeviceConnection, payload: bytes) -> Frame | None:
    """Return the frame, or None when it is wrong.

    A frame that is no JSON object, or a wrong first frame, ends the connection; other faults are answered by an error.
    """
    try:
        return decode_frame(payload)
    except InputError as error:
        if isinstance(error, MalformedError) or not connection.hello_received:
            connection.goodbye("protocol", str(error))
        else:
            connection.send(Error(code=error.result, desc=str(error), id=request_id(payload)))
        return None
