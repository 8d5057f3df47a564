"""Admission: whether a request of an app server, and the pushes that it asks for, may be executed now.

Each endpoint calls `Admission.admit` first. Its checks, in this order:

1. the bytes of all bodies whose sign is not verified yet: 503 (`parsing.body`)
2. the turn of the address for a large body: 429 (`request_limiter`)
3. the sign, and the replay-safe signature if there is one: 401 (`signature`, `replay_protection`)
4. the app's networks, and whether it demands a replay-safe signature: 403
5. the app's quota of requests a second: 429 (`quotas`)
6. a slot of the app among the requests of all apps: 429 (`request_limiter`)
7. the nonce of a replay-safe signature, which no request has used: 400 (`replay_protection`)

The sign is checked first. Otherwise the answers 403 and 429 would tell everyone which appkeys exist, and anyone could
use up another app's quota. What the body asks for is known once `AdmittedRequest.read` has parsed it:

8. a slot of the app's broadcasts, multicasts, long lists or queries: 429 (`request_limiter`)
9. of pushes (`PushAdmission`, for the console too): a pause of the app (403), capacity in delivery, targets a second
10. of pushes whose message ids are taken: stored bytes of timed ones, broadcasts a day: 429
"""

import asyncio
import itertools
import os
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from falcon.asgi import Request

from edge.core.answers import NoteRefusal
from edge.core.parsing import canonical
from edge.core.parsing.body import BodyBudget, read_body
from edge.core.parsing.canonical import Steps
from edge.core.quotas import RateQuotas
from edge.core.refusals import Caller, RefusalRecorder
from edge.core.replay_protection import SIGNATURE_HEADER, ReplayProtection, ReplaySafeSignature, body_hash
from edge.core.request_limiter import RequestLimiter, busy_as_too_many
from edge.core.signature import AppRef, SignatureVerifier, Signers, UsedSecrets
from protos.push.v1.push_pb2 import Audience, SendPush
from protos.registry.v1.apps_pb2 import App, Platform
from protos.registry.v1.registry_pb2 import TakeBroadcastsRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Origin
from protos.scheduling.v1.scheduling_pb2 import GetStoredBytesRequest
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.domain.apps import OUTDATED, AppDirectory
from services.domain.push_capacity import PushCapacity
from services.domain.quota_notices import QuotaNotices
from services.domain.role import RoleContext
from services.domain.text import without_byte_order_mark
from services.errors import Code, ForbiddenError, InputError, SignError, TooManyRequestsError, UnavailableError
from services.net.http.client_address import ClientAddresses, Networks, read_address
from services.process import stages
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import OLD_SECRET_REQUESTS, QUOTA_REFUSALS
from services.process.push_traces import trace_of
from services.replica.peers import Peers

LOG_AGAIN_MS = 3_600_000
MAX_LOGGED = 1000
"""Upper bound of the clients that are remembered as logged."""


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


# Requests.


class SigningApps(Protocol):
    """The apps that a request names. Their secrets, in one of the `accepted` orders, sign it."""

    @property
    def accepted(self) -> tuple[Signers, ...]: ...

    @property
    def appkeys(self) -> list[str]: ...


class OneApp(NamedTuple):
    """The app of a legacy request."""

    ref: AppRef

    @property
    def accepted(self) -> tuple[Signers, ...]:
        return ((self.ref,),)

    @property
    def appkeys(self) -> list[str]:
        return [self.ref.appkey]


Signing = TypeVar("Signing", bound=SigningApps)
Parsed = TypeVar("Parsed")


class AdmittedRequest(Generic[Signing]):
    """A request that may be executed. `text`: its canonical text; `apps`: the apps that signed it.

    It holds a slot of its first app, `appkey`. Its body is read by `read` alone, because all work in proportion to a
    body belongs into the turn of its app.
    """

    __slots__ = ("_limiter", "_raw", "appkey", "apps", "http", "origin", "text")

    def __init__(
        self, http: Request, raw: bytes, text: str, apps: Signing, origin: Origin, limiter: RequestLimiter
    ) -> None:
        self._raw = raw
        self._limiter = limiter
        self.http = http
        self.text = text
        self.apps = apps
        self.appkey = apps.appkeys[0]
        self.origin = origin

    async def read(self, parse: Callable[[bytes], Parsed]) -> Parsed:
        """Parse the body in a turn of its app. Errors of `parse`; TooManyRequestsError: too much waits."""
        return await self._limiter.in_turns(f"app {self.appkey}", len(self._raw), _one_step(parse, self._raw))

    async def enter_broadcast_or_multicast(self) -> None:
        """Exchange the slot for one of broadcasts, multicasts and long lists. TooManyRequestsError: too many wait."""
        await self._limiter.enter_broadcast_or_multicast(self.http, self.appkey)

    async def enter_list(self, targets: int) -> None:
        """Exchange the slot if the request has a long list of targets. Errors as for enter_broadcast_or_multicast."""
        await self._limiter.enter_list(self.http, self.appkey, targets)

    async def enter_query(self) -> None:
        """Exchange the slot for one of queries of analytics. Errors as for enter_broadcast_or_multicast."""
        await self._limiter.enter_query(self.http, self.appkey)

    def keep_until_started(self, push: SendPush) -> None:
        """Keep the slot of a broadcast or multicast until delivery has started `push`, the last of the request's."""
        self._limiter.keep_until_started(self.http, self.appkey, push)

    def keep_for_targets(self, targets: int) -> None:
        """Keep the slot of a long list for the time that its targets take in the roles behind the edge."""
        self._limiter.keep_for_targets(self.http, self.appkey, targets)


def _one_step(parse: Callable[[bytes], Parsed], raw: bytes) -> Steps[Parsed]:
    return parse(raw)
    yield


class SharedLimits(NamedTuple):
    """The limits that the interfaces of a process have together."""

    rates: RateQuotas
    limiter: RequestLimiter
    budget: BodyBudget
    replays: ReplayProtection
    refusals: RefusalRecorder


class Admission:
    """Admits the requests of one interface (android, ios or v2), which the apps that they name have signed."""

    def __init__(self, interface: str, context: RoleContext, addresses: ClientAddresses, limits: SharedLimits) -> None:
        self._apps = context.apps
        self._clock = context.clock
        self._signatures = SignatureVerifier(context.apps, context.keys, context.clock)
        self.origins = Origins(interface, addresses)
        self._limits = limits
        self._logged_ms: OrderedDict[tuple[str, str], int] = OrderedDict()

    @property
    def note_refusal(self) -> NoteRefusal:
        """Notes that a request of the interface is answered with an error."""
        return self._limits.refusals.note

    async def admit(
        self, request: Request, apps_of: Callable[[Mapping[str, Any]], Signing]
    ) -> AdmittedRequest[Signing]:
        """Read and admit a request; `apps_of` finds the apps in its fields.

        InputError: the body or the apps are wrong, or the nonce was used. SignError: the sign or the replay-safe
        signature is wrong. ForbiddenError: an app does not allow the address, or demands a replay-safe signature.
        TooManyRequestsError: an app is over its quota of requests, or too many requests wait. Other errors as for
        read_body, ReplaySafeSignature.of and ReplayProtection.take.
        """
        limits, origin = self._limits, self.origins.of(request)
        with limits.budget.body(origin.address) as unverified:
            raw = await read_body(request, counted=unverified)
            stages.note("read", origin.request_id)
            body = without_byte_order_mark(raw)
            signed = await limits.limiter.in_turns(origin.address, len(raw), canonical.reading(body, apps_of))
            request.context.caller = Caller(origin, signed.apps.appkeys)
            used = await self._signatures.verify(signed.hashed_text, signed.sign, signed.apps.accepted)
            replay_safe = ReplaySafeSignature.of(request)
            if replay_safe is not None:
                hashed = await limits.limiter.in_turns(origin.address, len(raw), _one_step(body_hash, raw))
                replay_safe.verify(request, hashed, used.secrets)
            request.context.caller = Caller(origin, signed.apps.appkeys, is_signed=True)
        stages.note("signed", origin.request_id)
        appkeys = signed.apps.appkeys
        self._check_apps(appkeys, origin, used, is_replay_safe=replay_safe is not None)
        limits.rates.take_request(appkeys)
        await limits.limiter.enter(request, appkeys[0], len(raw))
        if replay_safe is not None:
            await limits.replays.take(replay_safe, appkeys)
        return AdmittedRequest(request, body, signed.text, signed.apps, origin, limits.limiter)

    async def admit_app(self, request: Request, platform: "Platform.ValueType") -> tuple[AdmittedRequest[OneApp], App]:
        """Admit a request that names one app of the platform, `appkey`, at the top of the body. Errors as for admit."""
        admitted = await self.admit(request, partial(_one_app, platform))
        app = self._apps.get(admitted.appkey)
        if app is None:
            raise SignError("sign not correct")
        return admitted, app

    def _check_apps(self, appkeys: Sequence[str], origin: Origin, used: UsedSecrets, *, is_replay_safe: bool) -> None:
        """Check what the apps' settings demand. ForbiddenError: an app allows no such address, or no such signature."""
        for appkey in used.signed_by_old:
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

    def _log_old_secret(self, appkey: str, address: str) -> None:
        """Log once an hour which client still signs with the old secret."""
        now_ms = self._clock.now_ms()
        if now_ms < self._logged_ms.get((appkey, address), 0):
            return
        self._logged_ms[appkey, address] = now_ms + LOG_AGAIN_MS
        if len(self._logged_ms) > MAX_LOGGED:
            self._logged_ms.popitem(last=False)
        logger.warning("a client signs with the old secret, which ends soon", appkey=appkey, address=address)


def _one_app(platform: "Platform.ValueType", fields: Mapping[str, Any]) -> OneApp:
    given = fields.get("appkey")
    if given is None:
        raise InputError("appkey is missing")
    appkey = canonical.number_or_text(given)
    if appkey is None:
        raise InputError("appkey must be a string")
    return OneApp(AppRef(appkey, platform))


def _is_in(address: str, networks: tuple[str, ...]) -> bool:
    return read_address(address) in _parsed(networks)


@lru_cache(maxsize=1024)
def _parsed(networks: tuple[str, ...]) -> Networks:
    return Networks.parse(networks)


# Pushes.

BYTES_RETRY_S = 60
"""Time after which to try again to store a timed message. When the stored ones will be sent is not computed."""


class RequestedPush(NamedTuple):
    """One push that is asked for: its app, its audience before that is resolved, and its bytes in the log."""

    appkey: str
    audience: Audience
    size: int


class PushAdmission:
    """Admits pushes of app servers and of the console by the pauses and quotas of their apps.

    Apps without a quota cost nothing but the count of bytes for their capacity.
    """

    def __init__(self, apps: AppDirectory, rates: RateQuotas, peers: Peers, clock: Clock) -> None:
        self._apps = apps
        self._rates = rates
        self._registry = RegistryServiceStub(peers.all("registry")[0])
        self._schedulings = [SchedulingServiceStub(channel) for channel in peers.all("scheduling")]
        self._storing: dict[str, asyncio.Lock] = {}
        self._capacity = PushCapacity(peers, clock)
        self._notices = QuotaNotices(peers, clock)

    async def admit(self, pushes: Sequence[RequestedPush], *, is_timed: bool) -> None:
        """Check and count pushes that are about to be resolved.

        ForbiddenError: an app is paused. TooManyRequestsError: too much of an app waits in delivery, or an app is over
        its quota of targets; then no app's targets count. Other errors as for `_check_not_paused`.
        """
        await self._check_not_paused([push.appkey for push in pushes])
        if not is_timed:
            for push in pushes:
                await self._take_capacity(push)
        counts: Counter[str] = Counter()
        for push in pushes:
            counts[push.appkey] += target_count(push.audience)
        self._rates.take_targets(counts)

    async def admit_code(self, appkey: str) -> None:
        """Check and count a push with a possession code.

        ForbiddenError: the app is paused. TooManyRequestsError: the app has had too many of them. Other errors as for
        `_check_not_paused`.
        """
        await self._check_not_paused([appkey])
        self._rates.take_code(appkey)

    async def _check_not_paused(self, appkeys: Sequence[str]) -> None:
        """Check that none of the apps is paused.

        ForbiddenError: an app is paused, also after a refresh of the app directory.

        UnavailableError: the refresh failed, so the pause may have ended. The answer does not contain the operator's
        reason: whoever signs with a stolen secret would read it.
        """
        if any(map(self._apps.is_paused, appkeys)):
            is_current = await self._apps.refresh()
            for appkey in appkeys:
                if self._apps.is_paused(appkey):
                    refusal = ForbiddenError(Code.APP_PAUSED, appkey=appkey)
                    raise refusal if is_current else UnavailableError(OUTDATED)

    async def _take_capacity(self, push: RequestedPush) -> None:
        """Count the bytes of a push that is sent at once. TooManyRequestsError: too much of the app waits already."""
        if self._capacity.count(push.appkey, push.size):
            try:
                with busy_as_too_many():
                    await self._capacity.ask(push.appkey)
            except TooManyRequestsError:
                QUOTA_REFUSALS.labels(push.appkey, "waiting").inc()
                raise

    @asynccontextmanager
    async def committing(self, pushes: Sequence[SendPush], *, is_timed: bool) -> AsyncIterator[None]:
        """Check and count the pushes; append them inside the `with`. TooManyRequestsError: an app is over a quota.

        An app with a quota of bytes stores timed pushes one at a time, so that each check counts those before.
        Broadcasts are counted last, and stay counted when the append fails.
        """
        async with AsyncExitStack() as stack:
            if is_timed:
                await self._check_bytes(pushes, stack)
            await self.take_broadcasts(pushes)
            yield

    async def _check_bytes(self, pushes: Sequence[SendPush], stack: AsyncExitStack) -> None:
        sizes: Counter[str] = Counter()
        for push in pushes:
            if self._quota(push.appkey, "stored_task_bytes"):
                sizes[push.appkey] += push.ByteSize()
        if not sizes:
            return
        appkeys = sorted(sizes)
        for appkey in appkeys:
            await stack.enter_async_context(self._storing.setdefault(appkey, asyncio.Lock()))
        request = GetStoredBytesRequest(appkeys=appkeys)
        answers = await asyncio.gather(*(scheduling.GetStoredBytes(request) for scheduling in self._schedulings))
        for place, appkey in enumerate(appkeys):
            stored = sum(answer.bytes[place] for answer in answers)
            quota = self._quota(appkey, "stored_task_bytes")
            if stored + sizes[appkey] > quota:
                QUOTA_REFUSALS.labels(appkey, "stored_task_bytes").inc()
                self._notices.note(appkey, "stored_task_bytes", quota)
                raise TooManyRequestsError(
                    Code.OVER_STORED_BYTES,
                    BYTES_RETRY_S,
                    appkey=appkey,
                    quota=quota,
                    stored=stored,
                    size=sizes[appkey],
                )

    async def take_broadcasts(self, pushes: Sequence[SendPush]) -> None:
        """Count the broadcasts and multicasts among the pushes; they stay counted.

        TooManyRequestsError: an app is over its quota.
        """
        named = (push.appkey for push in pushes if is_broadcast_or_multicast(push.audience))
        appkeys = [appkey for appkey in dict.fromkeys(named) if self._quota(appkey, "broadcasts_per_day")]
        if not appkeys:
            return
        answer = await self._registry.TakeBroadcasts(TakeBroadcastsRequest(appkeys=appkeys))
        if appkey := answer.exhausted_appkey:
            QUOTA_REFUSALS.labels(appkey, "broadcasts_per_day").inc()
            raise TooManyRequestsError(
                Code.OVER_BROADCASTS,
                answer.retry_after_s,
                appkey=appkey,
                quota=self._quota(appkey, "broadcasts_per_day"),
                wait_s=answer.retry_after_s,
            )

    def _quota(self, appkey: str, name: str) -> int:
        app = self._apps.get(appkey)
        return int(getattr(app.quotas, name)) if app is not None else 0


def target_count(audience: Audience) -> int:
    """Return the targets that an audience names: each entry of a list, or one for a filter or everyone."""
    match audience.WhichOneof("audience"):
        case "tokens":
            return len(audience.tokens.tokens)
        case "aliases":
            return len(audience.aliases.aliases)
        case _:
            return 1


def is_broadcast_or_multicast(audience: Audience) -> bool:
    """Return whether an audience is all devices (broadcast) or a filter (multicast), which may match all."""
    return audience.WhichOneof("audience") in ("everyone", "filter")
