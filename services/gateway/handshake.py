"""The handshake: a device says hello, and is welcomed, registered or refused."""

from functools import partial
from random import Random
from typing import Literal

from services.domain.device_protocol.answers import Welcome, error_answer
from services.domain.device_protocol.frames import Hello, ignored_attributes
from services.domain.master_key import KeyPurpose
from services.domain.registrations import RegistrationLimiter
from services.domain.role import RoleContext
from services.errors import CarillonError, TooManyRequestsError, UnavailableError
from services.gateway.connection import DeviceConnection, Handler
from services.gateway.connections import ConnectionTable, DeviceSession
from services.gateway.device_requests import DeviceRequests
from services.gateway.left_devices import LeftDevices
from services.gateway.listener import Drain
from services.gateway.rules import (
    Capacity,
    ConnectionLimits,
    HelloDecision,
    decide_hello,
    drained_retry_ms,
    is_new,
    over_quota_retry_ms,
    refused_retry_ms,
)
from services.gateway.session import UNEXPECTED_HELLO, SessionHandler, decode_or_answer
from services.process.logs import logger
from services.process.metrics import REFUSED


class Handshake(Handler[DeviceConnection]):
    """Handles connections from the upgrade to the welcome, then hands them over to the session handler."""

    def __init__(
        self,
        context: RoleContext,
        connections: ConnectionTable[DeviceConnection],
        capacity: Capacity,
        limits: ConnectionLimits,
        registrations: RegistrationLimiter,
        drain: Drain,
        requests: DeviceRequests,
        left: LeftDevices,
        sessions: SessionHandler,
        random: Random,
    ) -> None:
        self._apps = context.apps
        self._keys = context.keys
        self._now_ms = context.clock.now_ms
        self._connections = connections
        self._capacity = capacity
        self._limits = limits
        self._registrations = registrations
        self._drain = drain
        self._requests = requests
        self._left = left
        self._sessions = sessions
        self._random = random

    def opened(self, connection: DeviceConnection) -> None:
        """Refuse the connection with a goodbye when the gateway drains or is full."""
        if self._drain.in_progress:
            self._drain.say_goodbye(connection)
        elif len(self._connections) >= self._capacity.connections:
            REFUSED.labels("full").inc()
            connection.goodbye("draining", "the gateway is full", retry_after_ms=refused_retry_ms(self._random))

    def received(self, connection: DeviceConnection, payload: bytes) -> None:
        frame = decode_or_answer(connection, payload)
        if frame is None:
            return
        if isinstance(frame, Hello) == connection.hello_received:
            connection.goodbye("protocol", UNEXPECTED_HELLO)
        elif isinstance(frame, Hello):
            connection.hello_received = True
            self._hello(connection, frame)
        else:
            connection.submit(partial(self._sessions.handle_early, connection, frame))

    def _hello(self, connection: DeviceConnection, hello: Hello) -> None:
        if is_new(hello) and not self._registrations.take(connection.address, self._now_ms()):
            REFUSED.labels("registrations").inc()
            connection.goodbye("draining", "too many new devices", retry_after_ms=refused_retry_ms(self._random))
            return
        match self._decide(hello):
            case "welcome", number:
                connection.submit(partial(self._welcome_known, connection, hello, number))
            case "register", _:
                connection.submit(partial(self._register, connection, hello))
            case _:
                connection.submit(partial(self._refuse_unless_new_app, connection, hello))

    async def _refuse_unless_new_app(self, connection: DeviceConnection, hello: Hello) -> None:
        """Decide again after the app directory was refreshed, for the app may have been created a moment ago.

        No device is refused while the log does not answer: what the directory does not know may be in the log.
        """
        is_current = await self._apps.refresh()
        match self._decide(hello):
            case "welcome", number:
                await self._welcome_known(connection, hello, number)
            case "register", _:
                await self._register(connection, hello)
            case "refuse", _ if is_current:
                connection.goodbye("unauthorized")
            case _:
                self._ask_to_try_again(connection)

    def _decide(self, hello: Hello) -> tuple[HelloDecision | Literal["later"], int]:
        """Return the decision, and the device number that the key proves (0 when it proves none).

        later: this process lacks the key in force (see Keys), so it can neither check device keys nor issue any.
        """
        try:
            self._keys.check(KeyPurpose.DEVICES)
            number = None if is_new(hello) else self._proven_number(hello)
        except UnavailableError:
            return "later", 0
        return decide_hello(hello, self._apps.get(hello.app), number), number or 0

    async def _welcome_known(self, connection: DeviceConnection, hello: Hello, proven: int) -> None:
        """Welcome a device whose key proves this number, once the registry has confirmed that it is the token's.

        A device that registered before the log went back has a valid key, but its number may be another device's by
        now. So a token that the log does not know is registered anew, and one with another number gets a new key.

        While the registry does not answer, a device that it has confirmed for this gateway lately is welcomed.
        """
        token = str(hello.token)
        number: int | None = proven
        try:
            number = await self._requests.registered_number(hello.app, token)
        except CarillonError as error:
            if not self._was_confirmed(hello.app, token, proven):
                logger.warning("a device could not be looked up", appkey=hello.app, error=str(error))
                self._ask_to_try_again(connection)
                return
        if number is None:
            await self._register(connection, hello, proven)
        elif self._apps.is_revoked(hello.app, self._requests.partition(hello.app, token), number):
            connection.goodbye("unauthorized")
        else:
            self._welcome(connection, hello, token, number, new=number != proven)
            self._update(connection, hello)

    def _was_confirmed(self, appkey: str, token: str, number: int) -> bool:
        older = self._connections.find(self._connections.newest(appkey, token))
        if older is not None and older.session is not None and not older.is_draining:
            self._left.add(older.session)  # the device has given it up
        return self._left.has(appkey, token, self._requests.partition(appkey, token), number)

    async def _register(self, connection: DeviceConnection, hello: Hello, proven: int | None = None) -> None:
        """Register a device that is new, or whose key proves a number that the log has lost."""
        try:
            token, number = await self._requests.register(hello, connection.address, proven)
        except TooManyRequestsError as error:
            REFUSED.labels("quota").inc()
            connection.send(error_answer(None, error))
            retry_after_ms = over_quota_retry_ms(error.retry_after_s, self._random)
            connection.goodbye("draining", str(error), retry_after_ms=retry_after_ms)
        except Exception as error:
            logger.error("a device could not be registered", appkey=hello.app, error=str(error))
            self._ask_to_try_again(connection)
        else:
            self._welcome(connection, hello, token, number, new=True)

    def _ask_to_try_again(self, connection: DeviceConnection) -> None:
        retry_after_ms = drained_retry_ms(len(self._connections), self._limits.drain_per_s, self._random)
        connection.goodbye("draining", "try again", retry_after_ms=retry_after_ms)

    def _proven_number(self, hello: Hello) -> int | None:
        """Return the device number that the key proves; a revoked key proves none, unless its number was lost."""
        token = hello.token or ""
        number = self._keys.device_number(hello.app, token, hello.key or "")
        if number is None:
            return None
        is_refused = self._apps.is_refused(hello.app, self._requests.partition(hello.app, token), number)
        return None if is_refused else number

    def _welcome(self, connection: DeviceConnection, hello: Hello, token: str, number: int, *, new: bool) -> None:
        if connection.closing_ms is not None:
            return
        if self._connections.newest(hello.app, token) > connection.id:
            connection.goodbye("replaced")
            return
        try:
            key = self._keys.device_key(hello.app, token, number, hello.key)
        except UnavailableError:
            self._ask_to_try_again(connection)
            return
        partition = self._requests.partition(hello.app, token)
        session = DeviceSession(connection.id, hello.app, token, partition, number)
        heartbeat_s = self._limits.heartbeat(hello.heartbeat)
        self._sessions.start(connection, session, heartbeat_s)
        ignored = ignored_attributes(hello)
        connection.send(Welcome(token=token, key=key, heartbeat=heartbeat_s, new=new, ignored=ignored))

    def _update(self, connection: DeviceConnection, hello: Hello) -> None:
        """Store the attributes of a device that was registered before."""
        if connection.session is not None and hello.device is not None:
            connection.submit(partial(self._requests.update, hello, connection.session, connection.address))
