"""Admission of a signed request: which apps it names, their signs, networks, quota, and the request's origin.

The sign is checked first. Otherwise the answers 403 and 429 would tell everyone which appkeys exist, and anyone could
use up another app's quota.
"""

import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from falcon.asgi import Request

from edge.core.parsing import canonical
from edge.core.parsing.body import BodyBudget, read_body
from edge.core.parsing.canonical import Steps
from edge.core.quotas import RateQuotas
from edge.core.replay_protection import SIGNATURE_HEADER, ReplayProtection, ReplaySafeSignature, body_hash
from edge.core.request_limiter import RequestLimiter
from edge.core.signature import AppRef, SignatureVerifier, Signers
from protos.registry.v1.apps_pb2 import App, Platform
from protos.runtime.v1.log_pb2 import Origin
from services.domain.apps import AppDirectory
from services.domain.text import without_byte_order_mark
from services.errors import ForbiddenError, InputError, SignError
from services.net.http.client_address import ClientAddresses, Networks, read_address
from services.process import stages
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import OLD_SECRET_REQUESTS
from services.process.push_traces import trace_of

LOG_AGAIN_MS = 3_600_000
MAX_LOGGED = 1000
"""Upper bound of the clients that are remembered as logged."""


class Admission:
    """Admits the signed requests of one interface."""

    def __init__(self, apps: AppDirectory, rates: RateQuotas, clock: Clock) -> None:
        self._apps = apps
        self._rates = rates
        self._clock = clock
        self._logged_ms: OrderedDict[tuple[str, str], int] = OrderedDict()

    def admit(
        self, appkeys: Sequence[str], origin: Origin, signed_by_old: Sequence[str], *, is_replay_safe: bool
    ) -> None:
        """Check that the request may be executed; `signed_by_old` are the appkeys that used their old secret.

        ForbiddenError: an app does not allow the address, or demands a replay-safe signature. TooManyRequestsError: an
        app is over its quota of requests.
        """
        for appkey in signed_by_old:
            OLD_SECRET_REQUESTS.labels(appkey).inc()
            self._log_old_secret(appkey, origin.address)
        for appkey in appkeys:
            app = self._apps.get(appkey)
            if app is not None and app.allow_from and not _is_in(origin.address, tuple(app.allow_from)):
                raise ForbiddenError(f"requests of app {appkey} are not accepted from {origin.address}")
            if app is not None and app.replay_safe_required and not is_replay_safe:
                raise ForbiddenError(
                    f"requests of app {appkey} need a replay-safe signature, the header {SIGNATURE_HEADER}"
                )
        self._rates.take_request(appkeys)

    def _log_old_secret(self, appkey: str, address: str) -> None:
        """Log once an hour which client still signs with the old secret."""
        now_ms = self._clock.now_ms()
        if now_ms < self._logged_ms.get((appkey, address), 0):
            return
        self._logged_ms[appkey, address] = now_ms + LOG_AGAIN_MS
        if len(self._logged_ms) > MAX_LOGGED:
            self._logged_ms.popitem(last=False)
        logger.warning("a client signs with the old secret, which ends soon", appkey=appkey, address=address)


def _is_in(address: str, networks: tuple[str, ...]) -> bool:
    return read_address(address) in _parsed(networks)


@lru_cache(maxsize=1024)
def _parsed(networks: tuple[str, ...]) -> Networks:
    return Networks.parse(networks)


# Origins of requests, recorded with the commands that they cause.


class Origins:
    """Makes the Origin of each request of one HTTP interface (android, ios or v2).

    Request ids are a random process id and a counter.
    """

    def __init__(self, interface: str, addresses: ClientAddresses) -> None:
        self._interface = interface
        self._addresses = addresses
        self._process = os.urandom(6).hex()
        self._count = itertools.count(1)

    def of(self, request: Request) -> Origin:
        request_id = f"{self._process}-{next(self._count)}"
        address = self._addresses.of_scope(request.scope)
        trace = trace_of(getattr(request.context, "span", None))
        return Origin(interface=self._interface, address=address, request_id=request_id, trace=trace)


# Authentication of requests: read the body, find the apps that it names, verify its sign.


class SigningApps(Protocol):
    """The apps that a request names. Their secrets, in one of the `accepted` orders, sign it."""

    @property
    def accepted(self) -> tuple[Signers, ...]: ...

    @property
    def appkeys(self) -> list[str]: ...


Signing = TypeVar("Signing", bound=SigningApps)
Parsed = TypeVar("Parsed")


class VerifiedRequest(Generic[Signing]):
    """A request whose sign is right. `text`: its canonical text; `apps`: the apps that signed it.

    Its body is read by `read` alone, because all work in proportion to a body belongs into the turn of its app.
    """

    __slots__ = ("_limiter", "_raw", "apps", "origin", "text")

    def __init__(self, raw: bytes, text: str, apps: Signing, origin: Origin, limiter: RequestLimiter) -> None:
        self._raw = raw
        self._limiter = limiter
        self.text = text
        self.apps = apps
        self.origin = origin

    async def read(self, parse: Callable[[bytes], Parsed]) -> Parsed:
        """Parse the body in a turn of its app. Errors of `parse`; TooManyRequestsError: too much waits."""
        key = f"app {self.apps.appkeys[0]}"
        return await self._limiter.in_turns(key, len(self._raw), _one_step(parse, self._raw))


def _one_step(parse: Callable[[bytes], Parsed], raw: bytes) -> Steps[Parsed]:
    return parse(raw)
    yield


class Authenticator:
    """Authenticates requests signed with the secrets of the apps that they name."""

    def __init__(
        self,
        signatures: SignatureVerifier,
        admission: Admission,
        origins: Origins,
        limiter: RequestLimiter,
        budget: BodyBudget,
        replays: ReplayProtection,
    ) -> None:
        self._signatures = signatures
        self._admission = admission
        self._origins = origins
        self._limiter = limiter
        self._budget = budget
        self._replays = replays

    async def authenticate(
        self, request: Request, apps_of: Callable[[Mapping[str, Any]], Signing]
    ) -> VerifiedRequest[Signing]:
        """Read and verify a request, and wait for a slot of the limiter; `apps_of` finds the apps in its fields.

        InputError: the body or the apps are wrong. SignError: the sign or the replay-safe signature is wrong. Other
        errors as for read_body, Admission.admit, RequestLimiter.in_turns, ReplaySafeSignature.of and
        ReplayProtection.take.
        """
        origin = self._origins.of(request)
        with self._budget.body(origin.address) as unverified:
            raw = await read_body(request, counted=unverified)
            stages.note("read", origin.request_id)
            body = without_byte_order_mark(raw)
            signed = await self._limiter.in_turns(origin.address, len(raw), canonical.reading(body, apps_of))
            used = await self._signatures.verify(signed.hashed_text, signed.sign, signed.apps.accepted)
            replay_safe = ReplaySafeSignature.of(request)
            if replay_safe is not None:
                hashed = await self._limiter.in_turns(origin.address, len(raw), _one_step(body_hash, raw))
                replay_safe.verify(request, hashed, used.secrets)
        stages.note("signed", origin.request_id)
        verified = VerifiedRequest(body, signed.text, signed.apps, origin, self._limiter)
        appkeys = signed.apps.appkeys
        self._admission.admit(appkeys, origin, used.signed_by_old, is_replay_safe=replay_safe is not None)
        await self._limiter.enter(request, appkeys[0], len(raw))
        if replay_safe is not None:
            await self._replays.take(replay_safe, appkeys)
        return verified


class OneApp(NamedTuple):
    """The app of a legacy request."""

    ref: AppRef

    @property
    def accepted(self) -> tuple[Signers, ...]:
        return ((self.ref,),)

    @property
    def appkeys(self) -> list[str]:
        return [self.ref.appkey]


class AuthenticatedRequest(NamedTuple):
    """A request signed by its app."""

    verified: VerifiedRequest[OneApp]
    app: App

    @property
    def text(self) -> str:
        """The canonical text."""
        return self.verified.text

    @property
    def origin(self) -> Origin:
        return self.verified.origin

    @property
    def ref(self) -> AppRef:
        return AppRef(self.app.appkey, self.app.platform)

    async def read(self, parse: Callable[[bytes], Parsed]) -> Parsed:
        """Parse the body as `VerifiedRequest.read` does."""
        return await self.verified.read(parse)


class AppAuthenticator:
    """Authenticates requests that name one app of the interface's platform, `appkey`, at the top of the body."""

    def __init__(self, platform: "Platform.ValueType", apps: AppDirectory, authenticator: Authenticator) -> None:
        self._platform = platform
        self._apps = apps
        self._authenticator = authenticator

    async def authenticate(self, request: Request) -> AuthenticatedRequest:
        """Read and verify a request, and wait for a slot of the limiter. Errors as for Authenticator.authenticate."""
        verified = await self._authenticator.authenticate(request, self._app_of)
        app = self._apps.get(verified.apps.ref.appkey)
        if app is None:
            raise SignError("sign not correct")
        return AuthenticatedRequest(verified, app)

    def _app_of(self, fields: Mapping[str, Any]) -> OneApp:
        given = fields.get("appkey")
        if given is None:
            raise InputError("appkey is missing")
        appkey = canonical.number_or_text(given)
        if appkey is None:
            raise InputError("appkey must be a string")
        return OneApp(AppRef(appkey, self._platform))
