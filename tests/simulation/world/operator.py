"""A simulated operator: pauses and resumes the app, rotates its secret key, and revokes a device's key."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from carillon_device import Device, DeviceEndedError, DeviceError, Frame
from carillon_device.connection import GatewayConnection
from protos.registry.v1.registry_pb2 import (
    PauseAppsRequest,
    ResumeAppsRequest,
    RevokeDeviceKeyRequest,
    RotateSecretRequest,
)
from services.errors import CarillonError
from testkit.installation.app_server import AppCredentials
from tests.simulation.world.errors import in_time
from tests.soak.android_device import Gateway
from tests.soak.checks import Observations, Violation
from tests.soak.ledger import Ledger
from tests.soak.senders import WRONG_SIGN, HttpInterface
from tests.soak.settled_checks import SETTLE_S

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

_RETRY_S = 0.5
_FAILED = 500
"""The result of a request that may succeed later."""

_KEPT_S = 20
"""How long the former secret key stays valid."""

_ENDS_WITHIN_S = 60.0
"""How long after a revocation, once all faults are over, the device may stay connected."""

_WRITTEN_WITHIN_MS = 10_000
"""How long frames may be under way that were sent before a pause."""

Result = TypeVar("Result")


class Pause(NamedTuple):
    """The times between which the app was certainly paused: delivery and scheduling had confirmed it."""

    begun_ms: int
    ended_ms: int


class AppServer(Protocol):
    """A client that signs requests of the app."""

    def sign_with(self, app: AppCredentials) -> None:
        """Sign with the app's new secret key from now on."""
        ...


class _RevokedDevice(Device):
    """A device whose key will be revoked. It ignores pushes, because no check counts its acknowledgements."""

    gateway: Gateway

    async def _open_connection(self) -> GatewayConnection:
        return await self.gateway.open_connection()

    def _dispatch(self, frame: Frame) -> None:
        if frame["type"] != "push":
            super()._dispatch(frame)


class Operator:
    """Makes one change at a time, and repeats each call until the registry answers.

    A wrong effect of a change is an error of the ledger.
    """

    def __init__(
        self,
        registry: "RegistryServiceAsyncStub",
        app: AppCredentials,
        app_servers: Sequence[AppServer],
        gateway: Gateway,
        ledger: Ledger,
    ) -> None:
        self.pauses: list[Pause] = []
        self._registry = registry
        self._app = app
        self._app_servers = app_servers
        self._gateway = gateway
        self._ledger = ledger
        self._former: list[AppCredentials] = []
        self._failures = 0
        self._turn = asyncio.Lock()
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def finish(self, interface: HttpInterface) -> None:
        """Resume what is paused, return once everything is done, and try the former secret keys, which have ended.

        No faults may happen any more. NotSettledError: a call is not answered in time.
        """
        self._over.set()
        with in_time("an operator's call is not answered"):
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*self._tasks)
        if self._former:
            await asyncio.sleep(2 * _KEPT_S)
        with in_time("an edge cannot tell whether a secret key has ended"):
            async with asyncio.timeout(SETTLE_S):
                for app in self._former:
                    await self._try_former(app, interface)

    async def pause(self, seconds: float) -> None:
        """Pause the app for so many seconds."""
        async with self._turn:
            paused = await self._answered(
                lambda: self._registry.PauseApps(PauseAppsRequest(appkey=self._app.appkey, reason="simulated"))
            )
            self._ledger.has_paused = True
            begun_ms = self._ledger.now_ms()
            self._ledger.write("paused", unconfirmed=list(paused.unconfirmed))
            await self._wait(seconds)
            if not paused.unconfirmed:
                self.pauses.append(Pause(begun_ms, self._ledger.now_ms()))
            await self._answered(lambda: self._registry.ResumeApps(ResumeAppsRequest(appkey=self._app.appkey)))
            self._ledger.write("resumed")

    async def rotate(self) -> None:
        """Make a new secret key; app servers sign with it before the former one ends."""
        async with self._turn:
            begun_ms, failures = self._ledger.now_ms(), self._failures
            rotated = await self._answered(
                lambda: self._registry.RotateSecret(RotateSecretRequest(appkey=self._app.appkey, keep_old_s=_KEPT_S))
            )
            self._ledger.write("rotated")
            await self._wait(_KEPT_S / 2)
            if self._failures == failures:
                until_ms = rotated.app.old_secret_until_ms
                self._ledger.errors += kept_and_refused(self._ledger, self._app, begun_ms, until_ms)
            self._former.append(self._app)
            self._app = AppCredentials(self._app.appkey, rotated.secret_key)
            for app_server in self._app_servers:
                app_server.sign_with(self._app)

    async def revoke(self) -> None:
        """Register a device and revoke its key: it is sent away for good."""
        async with self._turn:
            device = _RevokedDevice(self._gateway.url, self._app.appkey)
            device.gateway = self._gateway
            while device.token is None:
                try:
                    await device.connect(_RETRY_S)
                except DeviceError:
                    await asyncio.sleep(_RETRY_S)
            token = device.token
            await self._answered(
                lambda: self._registry.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=self._app.appkey, token=token))
            )
            self._ledger.write("revoked", token=token)
        await self._over.wait()
        try:
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await device.ended()
        except DeviceEndedError as ended:
            if ended.reason != "unauthorized":
                self._ledger.errors.append(f"a device whose key was revoked was told {ended.reason}")
        except TimeoutError:
            self._ledger.errors.append("a device whose key was revoked is still connected")
        await device.close()

    async def _try_former(self, app: AppCredentials, interface: HttpInterface) -> None:
        """Sign with a secret key that has ended, again while an edge cannot read the end of a slow log in time."""
        body = {"appkey": app.appkey, "action": "stag", "params": []}
        while (answer := await interface.call("POST", "/v2/deviceinfo", body, app.secret_key)).get("result") == _FAILED:
            await asyncio.sleep(_RETRY_S)
        if answer.get("desc") != WRONG_SIGN:
            self._ledger.errors.append(f"a secret key that has ended was answered {answer}")

    async def _answered(self, call: Callable[[], Awaitable[Result]]) -> Result:
        while True:
            try:
                return await call()
            except CarillonError as error:
                self._failures += 1
                self._ledger.write("operator not answered", error=str(error))
                await asyncio.sleep(_RETRY_S)

    async def _wait(self, seconds: float) -> None:
        """Wait for so long, or until the faults are over."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            pass


def kept_and_refused(ledger: Ledger, app: AppCredentials, begun_ms: int, until_ms: int) -> list[str]:
    """Return an error where the app's secret key was refused, though it is kept beside a new one since `begun_ms`.

    A request that was signed before the rotation before that may come late: its key has ended, it is rightly refused.
    `until_ms`: when it ends, by the registry's clock, which may be wrong.
    """
    refused = [
        secrets for at_ms, secrets in ledger.wrong_signs if begun_ms < at_ms < until_ms and app.secret_key in secrets
    ]
    return ["a secret key that is kept beside the new one was refused"] if refused else []


def sent_while_paused(observed: Observations, pauses: Sequence[Pause]) -> Iterator[Violation]:
    """Check that devices received no messages of a paused app, except those on their way when the pause began."""
    for client in observed.clients.values():
        for frame in client.frames:
            for pause in pauses:
                if pause.begun_ms + _WRITTEN_WITHIN_MS < frame.time_ms < pause.ended_ms:
                    yield Violation("paused", f"{client.name} was sent a push of a paused app", (frame.msgid,))
