"""One message for one iOS device: it is handed to Apple, again where that is needed, until it has its final outcome."""

from typing import Protocol

from services.delivery.apns.push import ApnsPush, ApnsResult
from services.delivery.ios.next_step import RetryHistory
from services.delivery.ios.push_progress import PushProgress

_NOT_SENT_YET = RetryHistory()


class MessageCallbacks(Protocol):
    """Receives the callbacks that the APNs sender makes for a message."""

    def is_wanted(self, message: "DeviceMessage") -> bool: ...

    def answered(self, message: "DeviceMessage", result: ApnsResult) -> None: ...

    def skipped(self, message: "DeviceMessage") -> None: ...


class DeviceMessage:
    """A message for one device, as a `PendingPush` of the APNs sender.

    `progress`: the progress of its push. `history`: the retries of the message. `badge`: the badge that the device is
    sent, None if the push leaves it unchanged.
    """

    __slots__ = ("_callbacks", "badge", "history", "msgid", "number", "partition", "progress", "push")

    def __init__(
        self,
        callbacks: MessageCallbacks,
        progress: PushProgress,
        partition: int,
        number: int,
        msgid: int,
        push: ApnsPush,
        badge: int | None,
    ) -> None:
        self._callbacks = callbacks
        self.progress = progress
        self.partition = partition
        self.number = number
        self.msgid = msgid
        self.push = push
        self.badge = badge
        self.history = _NOT_SENT_YET

    @property
    def expires_ms(self) -> int:
        return self.progress.push.expires_ms

    def is_wanted(self) -> bool:
        return self._callbacks.is_wanted(self)

    def answered(self, result: ApnsResult) -> None:
        self._callbacks.answered(self, result)

    def skipped(self) -> None:
        self._callbacks.skipped(self)

    def is_pending(self, now_ms: int) -> bool:
        """Whether the push still runs and the device has no final outcome for the message yet."""
        part = self.progress.push.active_parts.get(self.partition)
        return part is not None and self.expires_ms > now_ms and self.msgid in part.pending_msgids(self.number)
