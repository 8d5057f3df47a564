"""What goes to Apple's push service and what it answers."""

from dataclasses import dataclass
from typing import Literal, Protocol

UNKNOWN = 0


@dataclass(frozen=True, slots=True)
class ApnsPush:
    """One push to one device. `topic` is the app's bundle id; a background push has priority 5."""

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
    """Apple's answer: 200, or another status with Apple's reason; `timestamp_ms` with 410: dead since then.

    Status UNKNOWN: there was no answer, so whether Apple took the push is unknown; `reason` says what happened.
    """

    status: int
    reason: str = ""
    timestamp_ms: int | None = None

    @property
    def unknown(self) -> bool:
        return self.status == UNKNOWN


class Sending(Protocol):
    """A push on its way. It is `answered` or `skipped`, once."""

    @property
    def push(self) -> ApnsPush: ...

    def wanted(self) -> bool:
        """Asked right before it is sent."""
        ...

    def answered(self, result: ApnsResult) -> None: ...

    def skipped(self) -> None:
        """It was not wanted any more."""
        ...
