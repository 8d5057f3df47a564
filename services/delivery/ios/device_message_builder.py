"""Builds the messages for the devices of a chunk: token, badge and payload of each."""

from collections.abc import Iterator, Mapping, Sequence

from services.delivery.ios.badge_counter import BadgeCounter
from services.delivery.ios.device_message import DeviceMessage, MessageCallbacks
from services.delivery.ios.device_tokens import DeviceTokens, PushDevice
from services.delivery.ios.push_progress import PushProgress
from services.delivery.ios.round_robin import Chunk
from services.delivery.outcome_recorder import OutcomeRecorder
from services.domain.apns.credentials import ApnsCredentials
from services.runtime.process.clock import Clock


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

    async def look_up(self, chunks: Sequence[Chunk]) -> dict[int, dict[int, PushDevice]]:
        """Devices by partition and number, without the partitions whose registry is unavailable."""
        partitions: dict[int, list[int]] = {}
        for chunk in chunks:
            partitions.setdefault(chunk.partition, []).extend(chunk.numbers)
        return await self._tokens.fetch(self._appkey, partitions)

    def messages(
        self, chunk: Chunk, devices: Mapping[int, PushDevice], credentials: ApnsCredentials
    ) -> Iterator[DeviceMessage]:
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
                yield DeviceMessage(self._callbacks, progress, partition, number, msgid, push, badge)

    def _badge(self, progress: PushProgress, partition: int, number: int, active_ms: int) -> int | None:
        now_ms = self._clock.now_ms()
        if progress.increments_badge:
            return self._badges.increment(partition, number, active_ms, now_ms)
        return None if progress.badge is None else self._badges.note(partition, number, progress.badge, now_ms)
