"""The push services that take messages over: which apps use them, which devices have an address on them.

handing_over.py ─▶ ServiceSenders ─▶ the ServiceChannel of each claimed message     targeting ─▶ AddressRefresher
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import (
    CHANNEL_FCM,
    CHANNEL_HARMONY,
    CHANNEL_HMS,
    CHANNEL_HONOR,
    CHANNEL_OPPO,
    CHANNEL_VIVO,
    CHANNEL_WEBPUSH,
    CHANNEL_XIAOMI,
    ROUTE_UNSPECIFIED,
    ROUTE_VENDOR,
    Route,
)
from protos.targeting.v1.targeting_pb2 import (
    FindAddressedRequest,
    FindAddressedResponse,
    WaitAddressedRequest,
    WaitAddressedResponse,
)
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.delivery.channels import ClaimAnswer, ClaimedMessage, MessageClaims
from services.delivery.channels.service_channel import ServiceChannel
from services.delivery.due_hand_overs import DueHandOvers
from services.delivery.handing_over import ChannelSenders
from services.delivery.state.audience_parts import AppPartition
from services.delivery.state.hand_overs import NOBODY
from services.delivery.state.pushes import StartedPush
from services.domain.apps import AppDirectory
from services.errors import CarillonError
from services.process import background
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.replica.peers import Peers

ORDER = (
    CHANNEL_HMS,
    CHANNEL_HARMONY,
    CHANNEL_HONOR,
    CHANNEL_XIAOMI,
    CHANNEL_OPPO,
    CHANNEL_VIVO,
    CHANNEL_FCM,
    CHANNEL_WEBPUSH,
)
"""The order in which the channels of a device are tried: the maker of the phone wakes its apps most surely."""


class ServiceSenders(ChannelSenders):
    """Gives each claimed message to the ServiceChannel of its channel."""

    def __init__(self, channels: Sequence[ServiceChannel[Any, Any, Any]], apps: AppDirectory) -> None:
        by_number: dict[int, ServiceChannel[Any, Any, Any]] = {channel.channel: channel for channel in channels}
        self._channels: dict[int, ServiceChannel[Any, Any, Any]] = {
            number: by_number[number] for number in ORDER if number in by_number
        }
        self._apps = apps
        self._addressed: dict[str, dict[tuple[int, int], BitMap]] = {}
        self._routes: dict[str, Route.ValueType] = {}

    # --- what is known of the channels

    @property
    def is_any_usable(self) -> bool:
        return bool(self._channels)

    @property
    def appkeys(self) -> list[str]:
        """The apps that have credentials for a channel."""
        return [app.appkey for app in self._apps.all() if self.of_app(app.appkey)] if self._channels else []

    def of_app(self, appkey: str) -> list[int]:
        return [number for number, channel in self._channels.items() if channel.is_set_up(appkey)]

    def usable(self, appkey: str) -> list[int]:
        return [number for number in self.of_app(appkey) if self._channels[number].claim_window(appkey)]

    def stops(self, appkey: str) -> int:
        """Return how often a channel of the app has been stopped; one may be usable again since."""
        return sum(self._channels[number].stops(appkey) for number in self.of_app(appkey))

    def can_carry(self, channel: int, push: StartedPush) -> bool:
        return self._channels[channel].can_carry(push)

    def addressed(self, app_partition: AppPartition, channel: int) -> BitMap:
        appkey, partition = app_partition
        return self._addressed.get(appkey, {}).get((partition, channel), NOBODY)

    def route(self, appkey: str) -> "Route.ValueType":
        return self._routes.get(appkey, ROUTE_UNSPECIFIED)

    def note_routes(self, appkeys: Iterable[str]) -> "dict[str, Route.ValueType]":
        """Remember the present routes of these apps alone; return the former routes that differ from the present ones.

        Routes change here alone, as addresses do, so that no push is judged by a change that `HandOvers` has not been
        told.
        """
        former = self._routes
        found = ((appkey, self._apps.get(appkey)) for appkey in appkeys)
        self._routes = {appkey: app.channel_route for appkey, app in found if app is not None}
        return {appkey: route for appkey, route in former.items() if self.route(appkey) != route}

    def note_addressed(self, appkey: str, addressed: dict[tuple[int, int], BitMap]) -> dict[int, BitMap]:
        """Remember which of the app's devices have an address, by partition and channel; return the new ones."""
        former = self._addressed.get(appkey, {})
        new: dict[int, BitMap] = {}
        for (partition, channel), numbers in addressed.items():
            if added := numbers - former.get((partition, channel), NOBODY):
                new[partition] = new.get(partition, NOBODY) | added
        self._addressed[appkey] = {**former, **addressed}
        return new

    def forget_addressed(self, but: Iterable[str]) -> None:
        """Forget the addresses of all apps but these."""
        kept = set(but)
        self._addressed = {appkey: each for appkey, each in self._addressed.items() if appkey in kept}

    # --- claimed messages

    def window(self, appkey: str, channel: int) -> int:
        return self._channels[channel].claim_window(appkey)

    def send(self, messages: Sequence[ClaimedMessage], claims: MessageClaims) -> None:
        of_channels: dict[int, list[ClaimedMessage]] = {}
        for message in messages:
            of_channels.setdefault(message.channel, []).append(message)
        for number, of_channel in of_channels.items():
            if (channel := self._channels.get(number)) is not None:
                channel.hand_over(of_channel, claims)
            else:  # claimed by a release, or under settings, that had this channel
                for message in of_channel:
                    claims.answered(message, ClaimAnswer.GIVEN_UP)


REFRESH_MS = 10_000
"""Age of what is known of removed addresses and of credentials, at most while targeting answers."""

_CALL_S = 10.0
_INCOMPLETE_MS = 1_000
"""Wait after an answer that does not have all new addresses: after each of these, all addresses are asked for."""

_AT_ONCE = 8
"""Apps that targeting is asked about at the same time, so that many apps do not wait for each other in turn."""


class ChannelsChanged(Protocol):
    """Called with an app whose channels or route have changed: see `HandOvers.channels_changed`."""

    def __call__(self, appkey: str, *, was_vendor_first: bool) -> None: ...


class AddressRefresher:
    """A service that asks targeting which devices have addresses, and notes changes of apps' channels and routes.

    Each instance of targeting tells which devices have got an address as soon as it has read so in the log, those of
    all apps in one answer. All addresses of each app are asked for every REFRESH_MS.
    """

    name = "delivery addresses"

    def __init__(
        self,
        senders: ServiceSenders,
        due: DueHandOvers,
        channels_changed: ChannelsChanged,
        peers: Peers,
        partitions: Sequence[int],
        clock: Clock,
    ) -> None:
        """`partitions`: those that this process owns."""
        self._senders = senders
        self._due = due
        self._channels_changed = channels_changed
        self._peers = peers
        self._partitions = partitions
        self._clock = clock
        self._usable: dict[str, tuple[list[int], int]] | None = None
        self._appkeys: list[str] = []
        self._told: list[WaitAddressedResponse] = []
        self._has_told = asyncio.Event()
        self._has_apps = asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        await self.refresh()
        waiting = [
            background.start_endless(f"new addresses of targeting {number}", self._wait_addressed(number))
            for number in range(len(self._peers.all("targeting")))
        ]
        try:
            while True:
                until_ms = self._clock.now_ms() + REFRESH_MS
                while self._clock.now_ms() < until_ms and self._note_told():
                    await wait_for_first(self._clock, until_ms, self._has_told)
                await self.refresh()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait_addressed(self, instance: int) -> None:
        """Keep what the instance tells of new addresses until it is noted."""
        latest = WaitAddressedResponse()
        while True:
            await self._has_apps.wait()
            request = WaitAddressedRequest(process=latest.process, after=latest.until)
            stub = TargetingServiceStub(self._peers.all("targeting")[instance])
            try:
                latest = await stub.WaitAddressed(request, timeout=_CALL_S)
            except CarillonError:  # it is away, which the next refresh logs, or of a version without this call
                await self._clock.sleep_until(self._clock.now_ms() + REFRESH_MS)
                continue
            if latest.addresses or latest.is_incomplete:
                self._told.append(latest)
                self._has_told.set()
            if latest.is_incomplete and request.process:
                await self._clock.sleep_until(self._clock.now_ms() + _INCOMPLETE_MS)

    def _note_told(self) -> bool:
        """Note the new addresses; False: all addresses are to be asked for."""
        self._has_told.clear()
        told, self._told = self._told, []
        added: dict[str, dict[tuple[int, int], BitMap]] = {}
        known = set(self._appkeys)
        for new in (each for response in told for each in response.addresses):
            if new.appkey in known and new.partition in self._partitions:
                of_app = added.setdefault(new.appkey, {})
                for channel in new.channels:
                    of_app.setdefault((new.partition, channel), BitMap()).add(new.number)
        for appkey, of_app in added.items():
            for key, numbers in of_app.items():
                of_app[key] = numbers | self._senders.addressed((appkey, key[0]), key[1])
            for partition, numbers in self._senders.note_addressed(appkey, of_app).items():
                self._due.look_at_devices((appkey, partition), numbers)
        return not any(response.is_incomplete for response in told)

    async def refresh(self) -> None:
        """Ask once about each app that has credentials."""
        appkeys = self._appkeys = self._senders.appkeys
        if appkeys:
            self._has_apps.set()
        else:
            self._has_apps.clear()
        self._senders.forget_addressed(but=appkeys)
        for appkey, former_route in self._senders.note_routes(appkeys).items():
            self._channels_changed(appkey, was_vendor_first=former_route == ROUTE_VENDOR)
        for first in range(0, len(appkeys), _AT_ONCE):
            some = appkeys[first : first + _AT_ONCE]
            for appkey, new in zip(some, await asyncio.gather(*map(self._new_addresses, some)), strict=True):
                for partition, numbers in new.items():
                    self._due.look_at_devices((appkey, partition), numbers)
        usable = {appkey: (self._senders.usable(appkey), self._senders.stops(appkey)) for appkey in appkeys}
        former = usable if self._usable is None else self._usable
        for appkey in sorted({*usable, *former}):
            if usable.get(appkey) != former.get(appkey):
                self._channels_changed(appkey, was_vendor_first=False)
        self._usable = usable

    async def _new_addresses(self, appkey: str) -> dict[int, BitMap]:
        """Note the app's addresses in the partitions whose targeting answers; return the new ones."""
        instances = self._peers.all("targeting")
        shares = [[each for each in self._partitions if each % len(instances) == n] for n in range(len(instances))]
        requests = [FindAddressedRequest(appkey=appkey, partitions=share) for share in shares]
        answers = await asyncio.gather(
            *(self._ask(n, request) for n, request in enumerate(requests) if request.partitions)
        )
        known = self._senders.of_app(appkey)
        addressed: dict[tuple[int, int], BitMap] = {}
        for asked, answer in answers:
            if answer is not None:
                addressed |= {(partition, channel): NOBODY for partition in asked.partitions for channel in known}
                addressed |= {
                    (each.partition, each.channel): BitMap.deserialize(each.bitmap) for each in answer.addressed
                }
        return self._senders.note_addressed(appkey, addressed)

    async def _ask(
        self, instance: int, request: FindAddressedRequest
    ) -> tuple[FindAddressedRequest, FindAddressedResponse | None]:
        stub = TargetingServiceStub(self._peers.all("targeting")[instance])
        try:
            return request, await stub.FindAddressed(request, timeout=_CALL_S)
        except CarillonError as error:
            logger.warning("targeting does not say who has addresses; trying again", error=str(error))
            return request, None
