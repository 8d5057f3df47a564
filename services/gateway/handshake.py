"""How devices are met: the greeting, and what follows from each frame they send."""

from functools import partial
from random import Random

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind
from services.domain.device_protocol import (
    Ack,
    Activity,
    Change,
    Error,
    Frame,
    GetDeviceRequest,
    Hello,
    MalformedError,
    Ping,
    Pong,
    Report,
    Welcome,
    activity_kind,
    decode,
    report_kind,
    request_id,
)
from services.domain.role import RoleContext
from services.gateway.connection import Connection
from services.gateway.connections import ConnectionIds, Connections, Session
from services.gateway.decide import Limits, idle_ms, is_new, judge, later_ms, retry_after_ms
from services.gateway.device_requests import Requests
from services.gateway.session_writer import SessionWriter
from services.gateway.token_buckets import Buckets, network
from services.gateway.unreported import Outbox
from services.runtime.errors import InputError
from services.runtime.process.logs import logger
from services.runtime.process.metrics import CONNECTIONS, REFUSED


class Reception:
    """Knows who is connected; tells delivery and the sessions."""

    def __init__(
        self,
        context: RoleContext,
        requests: Requests,
        sessions: SessionWriter,
        outboxes: list[Outbox],
        connections: Connections[Connection],
        connection_ids: ConnectionIds,
        random: Random,
        limits: Limits,
        registrations: Buckets,
    ) -> None:
        self._apps = context.apps
        self._keys = context.keys
        self._now_ms = context.clock.now_ms
        self._requests = requests
        self._sessions = sessions
        self._outboxes = outboxes
        self._connections = connections
        self._ids = connection_ids
        self._random = random
        self._limits = limits
        self._registrations = registrations

    def leaving(self, connection: Connection, reason: str) -> None:
        """No frame goes to the device any more."""
        session = connection.session
        if session is not None and self._connections.leave(session):
            CONNECTIONS.dec()
            self._outbox(session).disconnected(session)
            self._sessions.record(session, SessionEventKind.SESSION_EVENT_KIND_CLOSED, reason)

    def received(self, connection: Connection, payload: bytes) -> None:
        try:
            frame = decode(payload)
        except InputError as error:
            if isinstance(error, MalformedError) or not connection.greeted:
                connection.goodbye("protocol", str(error))
            else:
                connection.send(Error(code=error.result, desc=str(error), id=request_id(payload)))
            return
        if isinstance(frame, Hello) == connection.greeted:
            connection.goodbye("protocol", "hello is the first frame, and comes once")
        elif isinstance(frame, Hello):
            self._greet(connection, frame)
        elif connection.session is not None:
            self._handle(connection, connection.session, frame)
        else:
            connection.submit(partial(self._handle_later, connection, frame))

    def _greet(self, connection: Connection, hello: Hello) -> None:
        connection.greeted = True
        if is_new(hello) and not self._registrations.take(network(connection.address), self._now_ms()):
            REFUSED.labels("registrations").inc()
            connection.goodbye("draining", "too many new devices", retry_after_ms=later_ms(self._random))
            return
        number = self._number(hello)
        match judge(hello, self._apps.get(hello.app), number):
            case "welcome":
                self._welcome(connection, hello, str(hello.token), number or 0, new=False)
            case _:
                connection.submit(partial(self._greet_slowly, connection, hello))

    async def _greet_slowly(self, connection: Connection, hello: Hello) -> None:
        """Greet a new device, or one whose app is not known: it may have been created a moment ago."""
        number = self._number(hello)
        if judge(hello, self._apps.get(hello.app), number) == "refuse":
            await self._apps.refresh()
        match judge(hello, self._apps.get(hello.app), number):
            case "refuse":
                connection.goodbye("unauthorized")
            case "welcome":
                self._welcome(connection, hello, str(hello.token), number or 0, new=False)
            case "register":
                await self._register(connection, hello)

    async def _register(self, connection: Connection, hello: Hello) -> None:
        try:
            token, number = await self._requests.register(hello, connection.address)
        except Exception as error:
            logger.error("a device could not be registered", appkey=hello.app, error=str(error))
            again_ms = retry_after_ms(len(self._connections), self._limits.drain_per_s, self._random)
            connection.goodbye("draining", "try again", retry_after_ms=again_ms)
        else:
            self._welcome(connection, hello, token, number, new=True)

    def _number(self, hello: Hello) -> int | None:
        """The number that the key proves; a revoked key proves nothing."""
        token = hello.token or ""
        number = self._keys.device_number(hello.app, token, hello.key or "")
        if number is None or self._apps.is_revoked(hello.app, self._requests.partition(hello.app, token), number):
            return None
        return number

    def _welcome(self, connection: Connection, hello: Hello, token: str, number: int, *, new: bool) -> None:
        if connection.closing_ms is not None:
            return
        appkey = hello.app
        partition = self._requests.partition(appkey, token)
        session = Session(self._ids.take(self._now_ms()), appkey, token, partition, number)
        heartbeat_s = self._limits.heartbeat(hello.heartbeat)
        connection.admit(session, idle_ms(heartbeat_s))
        older = self._connections.admit(session, connection)
        CONNECTIONS.inc()
        if older is not None:
            older.goodbye("replaced")
        key = hello.key or self._keys.device_key(appkey, token, number)
        connection.send(Welcome(token=token, key=key, heartbeat=heartbeat_s, new=new))
        self._outbox(session).connected(session)
        self._sessions.record(session, SessionEventKind.SESSION_EVENT_KIND_OPENED)
        if not new and hello.device is not None:
            connection.submit(partial(self._requests.update, hello, session, connection.address))

    def _handle(self, connection: Connection, session: Session, frame: Frame) -> None:
        match frame:
            case Ack(msgids=msgids):
                connection.acknowledged(msgids)
                kind = OutcomeKind.OUTCOME_KIND_RECEIVED
                self._outbox(session).report(session, msgids, kind, self._now_ms())
            case Report(event=event, msgid=msgid):
                self._outbox(session).report(session, [msgid], report_kind(event), self._now_ms())
            case Ping():
                connection.send(Pong())
            case Activity(event=event):
                self._sessions.record(session, activity_kind(event))
            case Hello():
                connection.goodbye("protocol", "hello is the first frame, and comes once")
            case _:
                connection.submit(partial(self._answer, connection, session, frame))

    async def _handle_later(self, connection: Connection, frame: Frame) -> None:
        if connection.session is not None:
            self._handle(connection, connection.session, frame)

    async def _answer(self, connection: Connection, session: Session, request: Change | GetDeviceRequest) -> None:
        connection.send(await self._requests.answer(request, session, connection.address))

    def _outbox(self, session: Session) -> Outbox:
        return self._outboxes[session.partition % len(self._outboxes)]
