"""Builds an app's messages for Apple: token, badge and payload of each device."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from protos.registry.v1.registry_pb2 import GetTokensRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.delivery.channels.apns.push_progress import ApnsMessage, MessageCallbacks, PushProgress
from services.delivery.channels.apns.queue import Chunk
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.devices import Badges
from services.domain.apns_credentials import ApnsCredentials
from services.domain.apns_payload import MAX_BADGE
from services.errors import CarillonError
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.peers import Peers

# Badges of an iOS app's devices, for pushes that increment them.

CACHED_DEVICES = 100_000
"""Upper bound of the devices whose latest badge is cached; the least recently used are forgotten first."""


class BadgeCounter:
    """Counts from the last badge a device was sent: as folded from the log, or as assigned since by this process."""

    def __init__(self, appkey: str, badges: Badges) -> None:
        self._appkey = appkey
        self._badges = badges
        self._assigned: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()

    def increment(self, partition: int, number: int, active_ms: int, now_ms: int) -> int:
        """Assign one more than the device shows. Opening the app, last at `active_ms`, clears the badge."""
        badge, assigned_ms = self._assigned.get((partition, number), (0, 0))
        if assigned_ms <= active_ms:
            badge = self._badges.last((self._appkey, partition), number, active_ms)
        return self.note(partition, number, min(badge + 1, MAX_BADGE), now_ms)

    def note(self, partition: int, number: int, badge: int, now_ms: int) -> int:
        """Remember the badge that the device is sent now; returns it."""
        self._assigned[partition, number] = badge, now_ms
        self._assigned.move_to_end((partition, number))
        if len(self._assigned) > CACHED_DEVICES:
            self._assigned.popitem(last=False)
        return badge


# Looks up device tokens by device number in the registry.


class AddressedDevice(NamedTuple):
    """A device that a push is sent to. `token`: "" if it was removed; `active_ms`: when the app was last opened."""

    token: str
    active_ms: int


class DeviceTokens:
    """Looks up devices in the registry instances that own their partitions."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def fetch(self, appkey: str, numbers: Mapping[int, Sequence[int]]) -> dict[int, dict[int, AddressedDevice]]:
        """Devices by partition and number, without the partitions whose registry is unavailable."""
        found = await asyncio.gather(*(self._fetch(appkey, *item) for item in numbers.items()))
        return {partition: devices for partition, devices in zip(numbers, found, strict=True) if devices is not None}

    async def _fetch(self, appkey: str, partition: int, numbers: Sequence[int]) -> dict[int, AddressedDevice] | None:
        registry = RegistryServiceStub(self._peers.owner("registry", partition))
        try:
            request = GetTokensRequest(appkey=appkey, partition=partition, numbers=numbers)
            response = await registry.GetTokens(request)
            return dict(zip(numbers, map(AddressedDevice, response.tokens, response.active_ms), strict=True))
        except CarillonError as error:
            logger.warning("the registry does not answer; trying again", error=str(error))
            return None


class DeviceMessageBuilder:
    """Builds the messages of one app."""

    def __init__(
        self,
        appkey: str,
        callbacks: MessageCallbacks,
        tokens: DeviceTokens,
        badges: BadgeCounter,
        recorder: OutcomeRecorder,
        clock: Clock,
    ) -> None:
        self._appkey = appkey
        self._callbacks = callbacks
        self._tokens = tokens
        self._badges = badges
        self._recorder = recorder
        self._clock = clock

    async def look_up(self, chunks: Sequence[Chunk]) -> dict[int, dict[int, AddressedDevice]]:
        """Devices by partition and number, without the partitions whose registry is unavailable."""
        partitions: dict[int, list[int]] = {}
        for chunk in chunks:
            partitions.setdefault(chunk.partition, []).extend(chunk.numbers)
        return await self._tokens.fetch(self._appkey, partitions)

    def messages(
        self, chunk: Chunk, devices: Mapping[int, AddressedDevice], credentials: ApnsCredentials
    ) -> Iterator[ApnsMessage]:
        """Yield each message of the chunk without a final outcome; its token is "" if the device was removed."""
        progress, partition, numbers = chunk
        part = progress.push.active_parts.get(partition)
        if part is None:
            return
        for number in numbers:
            for msgid in part.pending_msgids(number):
                if self._recorder.has_unwritten_final(partition, msgid, number):
                    continue
                device = devices[number]
                badge = self._badge(progress, partition, number, device.active_ms)
                push = progress.apns_push(device.token, credentials.topic, msgid, badge)
                yield ApnsMessage(self._callbacks, progress, partition, number, msgid, push, badge)

    def _badge(self, progress: PushProgress, partition: int, number: int, active_ms: int) -> int | None:
        now_ms = self._clock.now_ms()
        if progress.increments_badge:
            return self._badges.increment(partition, number, active_ms, now_ms)
        return None if progress.badge is None else self._badges.note(partition, number, progress.badge, now_ms)
