"""A push to Apple's service, its result, and the interface between a push's owner and the sender."""

from dataclasses import dataclass
from typing import Literal, Protocol

UNKNOWN = 0


@dataclass(frozen=True, slots=True)
class ApnsPush:
    """One push to one device. `topic` is the app's bundle id; Apple requires priority 5 for background pushes."""

    token: str
    topic: str
    payload: bytes
    msgid: int
    expires_ms: int
    push_type: Literal["alert", "background"] = "alert"
    priority: int = 10
    collapse_id: str | None = None


@dataclass(frozen=True, slots=True)
class ApnsResult:
    """Apple's response: 200, or another status with Apple's reason.

    `timestamp_ms` comes with status 410: the time since which the token is invalid. Status UNKNOWN means that there
    was no response, so Apple may or may not have accepted the push; `reason` then says what happened.
    """

    status: int
    reason: str = ""
    timestamp_ms: int | None = None

    @property
    def is_unknown(self) -> bool:
        return self.status == UNKNOWN


class PendingPush(Protocol):
    """A push submitted to a sender, which calls either `answered` or `skipped`, once."""

    @property
    def push(self) -> ApnsPush: ...

    def is_wanted(self) -> bool:
        """Whether to send the push; called right before it is sent."""
        ...

    def answered(self, result: ApnsResult) -> None: ...

    def skipped(self) -> None:
        """The push was not sent because it was no longer wanted."""
        ...
