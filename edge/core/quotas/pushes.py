"""The quotas of a push: targets a second, broadcasts a day, stored bytes of timed tasks, and capacity in delivery."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from edge.core.quotas.rates import RateQuotas
from edge.core.request_limiter import busy_as_too_many
from protos.push.v1.push_pb2 import Audience, SendPush
from protos.registry.v1.registry_pb2 import TakeBroadcastsRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.scheduling.v1.scheduling_pb2 import GetStoredBytesRequest
from protos.scheduling.v1.scheduling_pb2_grpc import SchedulingServiceStub
from services.domain.apps import AppDirectory
from services.domain.pushes.capacity import PushCapacity
from services.runtime.errors import TooManyRequestsError
from services.runtime.process.clock import Clock
from services.runtime.process.metrics import QUOTA_REFUSALS
from services.runtime.rpc.peers import Peers

BYTES_RETRY_S = 60
"""Time after which to try again to store a timed message: when others will be sent is not worked out."""


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
        """Enter when the pushes may be appended, which is done inside. TooManyRequestsError: an app is over a quota.

        Timed pushes of an app with a quota of bytes are stored one after the other, so that each sees the former.
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
    """Return whether an audience is all devices, or a filter, which may match all: that of a broadcast or multicast."""
    return audience.WhichOneof("audience") in ("everyone", "filter")
