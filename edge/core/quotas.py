"""An app's quotas: requests and targets a second, broadcasts a day, stored bytes, and capacity in delivery."""

import asyncio
import fcntl
import os
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import IntEnum
from pathlib import Path

from edge.core.request_limiter import busy_as_too_many
from edge.settings import ROLE_NAME
from protos.push.v1.push_pb2 import Audience, SendPush
from protos.registry.v1.registry_pb2 import TakeBroadcastsRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.scheduling.v1.scheduling_pb2 import GetStoredBytesRequest
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.domain.apps import AppDirectory
from services.domain.push_capacity import PushCapacity
from services.domain.role import RoleContext
from services.domain.settings import Settings
from services.errors import TooManyRequestsError
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import QUOTA_REFUSALS
from services.replica.peers import Peers
from services.replica.status_board import Replicas

# Token buckets that the worker processes of one edge share through files, one file for each app.
#
# A bucket is the time at which it will be full again (the "theoretical arrival time" of the generic cell rate
# algorithm), so it needs no refilling and survives restarts. It holds the tokens of one second, at least one. A
# request for more tokens than that passes when the bucket is full, and later ones wait until its tokens have come in.

MAX_COUNT = 10_000
"""Upper bound of the tokens of one request."""

_LOCK_ATTEMPTS = 10_000
_SECOND_NS = 10**9
_TIME = struct.Struct("<q")


class Rate(IntEnum):
    """The rates that are limited; the value is the place in an app's file."""

    REQUESTS = 0
    TARGETS = 1
    POSSESSION_CODES = 2


class SharedBuckets:
    """The buckets of all apps. `instances`: how many edges share the load now; each has an equal share of a rate."""

    def __init__(self, directory: Path, clock: Clock, instances: Callable[[], int]) -> None:
        self._directory = directory
        self._clock = clock
        self._instances = instances

    def take(self, appkey: str, rate: Rate, count: int, per_s: int) -> int:
        """Take `count` tokens and return 0, or take none and return the seconds after which to try again.

        Where the file cannot be read or written the tokens count as taken: a full disk must not stop pushes.
        """
        try:
            return self._change(appkey, rate, min(count, MAX_COUNT), per_s)
        except OSError as error:
            logger.error("an app's quota cannot be checked", appkey=appkey, error=str(error))
            return 0

    def give_back(self, appkey: str, rate: Rate, count: int, per_s: int) -> None:
        """Return the tokens of a request that was refused for another reason."""
        self.take(appkey, rate, -count, per_s)

    def _change(self, appkey: str, rate: Rate, count: int, per_s: int) -> int:
        interval_ns = self._instances() * _SECOND_NS // per_s
        capacity_ns = max(_SECOND_NS, interval_ns)
        now_ns = self._clock.now_ms() * 1_000_000
        descriptor = self._open(appkey)
        try:
            _lock(descriptor)
            stored = os.pread(descriptor, _TIME.size, rate * _TIME.size)
            full_ns = _TIME.unpack(stored)[0] if len(stored) == _TIME.size else 0
            if full_ns > now_ns + capacity_ns + MAX_COUNT * interval_ns:
                full_ns = 0  # the clock was set back, or the quota was raised
            full_ns = max(full_ns, now_ns)
            wait_ns = full_ns + min(count * interval_ns, capacity_ns) - capacity_ns - now_ns
            if wait_ns > 0 and count > 0:
                return -(-wait_ns // _SECOND_NS)
            os.pwrite(descriptor, _TIME.pack(full_ns + count * interval_ns), rate * _TIME.size)
            return 0
        finally:
            os.close(descriptor)

    def _open(self, appkey: str) -> int:
        path = self._directory / appkey
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            self._directory.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _lock(descriptor: int) -> None:
    """Lock the file against the other workers, which hold it for microseconds.

    If one was stopped with the lock the request goes on without it: a count may then be lost, but no worker hangs.
    """
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.sched_yield()
        else:
            return


# The quotas of requests and targets a second.

CODES_PER_S = 20
"""Pushes with possession codes that one app sends a second at most, whatever its quotas."""

_FIELDS = {Rate.REQUESTS: "requests_per_s", Rate.TARGETS: "targets_per_s"}
_NAMES = {Rate.REQUESTS: "requests", Rate.TARGETS: "targets"}


def rate_quotas(settings: Settings, context: RoleContext) -> "RateQuotas":
    """Return the quotas of this edge, whose processes share the files in its state's directory."""
    directory = settings.state_dir(ROLE_NAME) / "quotas"
    return RateQuotas(
        context.apps, SharedBuckets(directory, context.clock, Replicas(context.board, ROLE_NAME).instances)
    )


class RateQuotas:
    """Counts the requests and targets of apps that have a quota of them."""

    def __init__(self, apps: AppDirectory, buckets: SharedBuckets) -> None:
        self._apps = apps
        self._buckets = buckets

    def take_request(self, appkeys: Iterable[str]) -> None:
        """Count a request for each app. TooManyRequestsError: an app is over its quota; no app's request counts."""
        self._take(Rate.REQUESTS, dict.fromkeys(appkeys, 1))

    def take_targets(self, counts: Mapping[str, int]) -> None:
        """Count the targets of each app. Errors as for `take_request`."""
        self._take(Rate.TARGETS, counts)

    def take_code(self, appkey: str) -> None:
        """Count a push that brings a possession code. TooManyRequestsError: the app has had too many of them."""
        if wait_s := self._buckets.take(appkey, Rate.POSSESSION_CODES, 1, CODES_PER_S):
            raise TooManyRequestsError("too many devices of this app ask for a code; repeat the request", wait_s)

    def _take(self, rate: Rate, counts: Mapping[str, int]) -> None:
        taken: list[tuple[str, int, int]] = []
        for appkey, count in counts.items():
            app = self._apps.get(appkey)
            per_s = int(getattr(app.quotas, _FIELDS[rate])) if app is not None and app.HasField("quotas") else 0
            if not per_s:
                continue
            if wait_s := self._buckets.take(appkey, rate, count, per_s):
                for other, others, others_per_s in taken:
                    self._buckets.give_back(other, rate, others, others_per_s)
                QUOTA_REFUSALS.labels(appkey, _FIELDS[rate]).inc()
                raise TooManyRequestsError(
                    f"app {appkey} is over its quota of {per_s} {_NAMES[rate]} a second; try again in {wait_s} s",
                    wait_s,
                )
            taken.append((appkey, count, per_s))


BYTES_RETRY_S = 60
"""Time after which to try again to store a timed message; the time at which others are sent is not computed."""


class PushQuotas:
    """Checks the quotas of pushes. Apps without a quota cost nothing but the count of bytes for their capacity."""

    def __init__(self, apps: AppDirectory, rates: RateQuotas, peers: Peers, clock: Clock) -> None:
        self._apps = apps
        self._rates = rates
        self._registry = RegistryServiceStub(peers.all("registry")[0])
        self._schedulings = [SchedulingServiceStub(channel) for channel in peers.all("scheduling")]
        self._storing: dict[str, asyncio.Lock] = {}
        self._capacity = PushCapacity(peers, clock)

    async def take_capacity(self, appkeys: Iterable[str], sizes: Iterable[int]) -> None:
        """Count the bytes of pushes that are sent at once.

        TooManyRequestsError: too much of an app waits in delivery.
        """
        for appkey, size in zip(appkeys, sizes, strict=True):
            if self._capacity.count(appkey, size):
                try:
                    with busy_as_too_many():
                        await self._capacity.ask(appkey)
                except TooManyRequestsError:
                    QUOTA_REFUSALS.labels(appkey, "waiting").inc()
                    raise

    def take_targets(self, audiences: Sequence[tuple[str, Audience]]) -> None:
        """Count the targets of unresolved audiences, each with its appkey. TooManyRequestsError: none is counted."""
        counts: Counter[str] = Counter()
        for appkey, audience in audiences:
            counts[appkey] += target_count(audience)
        self._rates.take_targets(counts)

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
                raise TooManyRequestsError(
                    f"app {appkey} is over its quota of {quota} stored bytes of timed messages: {stored} are stored and"
                    f" this one needs {sizes[appkey]}; try again when some have been sent or cancelled",
                    BYTES_RETRY_S,
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
                f"app {appkey} is over its quota of {self._quota(appkey, 'broadcasts_per_day')} broadcasts a day;"
                f" try again in {answer.retry_after_s} s",
                answer.retry_after_s,
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
