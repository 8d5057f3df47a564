"""One message to one device on its way to Apple, including its retries."""

from typing import Protocol

from services.delivery.apns.push import ApnsPush, ApnsResult
from services.delivery.ios.next_step import AttemptState
from services.delivery.ios.push_progress import PushProgress

_FIRST = AttemptState()


class AttemptOwner(Protocol):
    """Receives the callbacks of an attempt's `PendingPush` interface."""

    def is_wanted(self, attempt: "Attempt") -> bool: ...

    def answered(self, attempt: "Attempt", result: ApnsResult) -> None: ...

    def skipped(self, attempt: "Attempt") -> None: ...


class Attempt:
    """A `PendingPush`. `badge`: the badge that the device is sent, None if the push leaves it unchanged."""

    __slots__ = ("_owner", "badge", "msgid", "number", "partition", "progress", "push", "state")

    def __init__(
        self,
        owner: AttemptOwner,
        progress: PushProgress,
        partition: int,
        number: int,
        msgid: int,
        push: ApnsPush,
        badge: int | None,
    ) -> None:
        self._owner = owner
        self.progress = progress
        self.partition = partition
        self.number = number
        self.msgid = msgid
        self.push = push
        self.badge = badge
        self.state = _FIRST

    @property
    def expires_ms(self) -> int:
        return self.progress.push.expires_ms

    def is_wanted(self) -> bool:
        return self._owner.is_wanted(self)

    def answered(self, result: ApnsResult) -> None:
        self._owner.answered(self, result)

    def skipped(self) -> None:
        self._owner.skipped(self)

    def is_pending(self, now_ms: int) -> bool:
        """Whether the push still runs and the device has no final outcome for the message yet."""
        part = self.progress.push.active_parts.get(self.partition)
        return part is not None and self.expires_ms > now_ms and self.msgid in part.pending_msgids(self.number)
