"""Progress of one push to a push service through its audience, in passes, and of each message to its final outcome."""

import asyncio
from collections.abc import Iterable
from typing import Generic, Protocol

from pyroaring import BitMap

from services.delivery.channels import (
    Answer,
    ClaimedMessage,
    Credentials,
    MessageClaims,
    PushEncoder,
    Recipient,
    Request,
    RetryHistory,
    backoff_ms,
)
from services.delivery.state.pushes import StartedPush


class PushProgress(Generic[Credentials, Request]):
    """The passes of one push over some partitions.

    `in_flight`: chunks and messages not concluded yet. `needs_pass`: devices were skipped, so another pass is due.
    `passes`: how many passes have begun after the first one. `allowance`: how many devices the rate limiter lets the
    push have in its next turn; `turn_done` is set when that turn has been taken (both unused without `qps`).
    """

    def __init__(
        self, push: StartedPush, partitions: Iterable[int], encoder: PushEncoder[Credentials, Request]
    ) -> None:
        self.push = push
        self.encoder = encoder
        self.in_flight = 0
        self.needs_pass = False
        self.turn_done = asyncio.Event()
        self.allowance = 0
        self.passes = 0
        self._partitions = list(partitions)
        self._remaining = list(self._partitions)
        self._numbers: BitMap | None = None
        self._position = 0

    @property
    def is_pass_complete(self) -> bool:
        return not self._remaining

    def is_running(self, now_ms: int) -> bool:
        return self.push.expires_ms > now_ms and any(
            partition in self.push.active_parts for partition in self._partitions
        )

    def start_pass(self) -> int:
        """Begin another pass; return the back-off in ms before it."""
        self._remaining = list(self._partitions)
        self._numbers = None
        self.needs_pass = False
        self.passes += 1
        return backoff_ms(self.passes)

    def take(self, count: int) -> tuple[int, list[int]] | None:
        """The next devices of the pass: a partition and up to `count` numbers in it; None at the end."""
        while self._remaining:
            partition = self._remaining[-1]
            if self._numbers is None:
                part = self.push.active_parts.get(partition)
                self._numbers, self._position = part.pending_numbers() if part else BitMap(), 0
            numbers = list(self._numbers[self._position : self._position + count])
            self._position += len(numbers)
            if self._position >= len(self._numbers):
                self._remaining.pop()
                self._numbers = None
            if numbers:
                return partition, numbers
        return None


# One message for one device: it is handed to the service, repeatedly if needed, until it has its final outcome.

_NOT_SENT_YET = RetryHistory()


class MessageCallbacks(Protocol[Credentials, Request, Answer]):
    """Receives the callbacks that a sender makes for a message."""

    def is_wanted(self, message: "MessageRequest[Credentials, Request, Answer]") -> bool: ...

    def answered(self, message: "MessageRequest[Credentials, Request, Answer]", answer: Answer) -> None: ...

    def skipped(self, message: "MessageRequest[Credentials, Request, Answer]") -> None: ...


class MessageRequest(Generic[Credentials, Request, Answer]):
    """A message for one device, as a `PendingRequest` of the sender.

    `progress`: the progress of its push. `history`: the retries of the message. `badge`: the badge that the device is
    sent, None if the push leaves it unchanged.
    """

    __slots__ = ("_callbacks", "badge", "history", "msgid", "progress", "recipient", "request")

    def __init__(
        self,
        callbacks: MessageCallbacks[Credentials, Request, Answer],
        progress: PushProgress[Credentials, Request],
        recipient: Recipient,
        msgid: int,
        request: Request,
        badge: int | None,
    ) -> None:
        self._callbacks = callbacks
        self.progress = progress
        self.recipient = recipient
        self.msgid = msgid
        self.request = request
        self.badge = badge
        self.history = _NOT_SENT_YET

    @property
    def expires_ms(self) -> int:
        return self.progress.push.expires_ms

    def is_wanted(self) -> bool:
        return self._callbacks.is_wanted(self)

    def answered(self, answer: Answer) -> None:
        self._callbacks.answered(self, answer)

    def skipped(self) -> None:
        self._callbacks.skipped(self)

    def is_pending(self, now_ms: int) -> bool:
        """Whether the push still runs and the device has no final outcome for the message yet."""
        part = self.progress.push.active_parts.get(self.recipient.partition)
        return (
            part is not None and self.expires_ms > now_ms and self.msgid in part.pending_msgids(self.recipient.number)
        )

    def begin_request(self, now_ms: int) -> bool:
        """Return `is_pending`, right before a request leaves if so."""
        return self.is_pending(now_ms)


class ClaimedDeviceMessage(MessageRequest[Credentials, Request, Answer]):
    """A message that a channel has claimed. Its outcome is recorded by the answer to `claims`."""

    __slots__ = ("claimed", "claims")

    def __init__(
        self,
        callbacks: MessageCallbacks[Credentials, Request, Answer],
        progress: PushProgress[Credentials, Request],
        recipient: Recipient,
        request: Request,
        claimed: ClaimedMessage,
        claims: MessageClaims,
    ) -> None:
        super().__init__(callbacks, progress, recipient, claimed.msgid, request, None)
        self.claimed = claimed
        self.claims = claims

    def is_pending(self, now_ms: int) -> bool:
        """Whether the channel still has the message to show."""
        return self.claims.may_request(self.claimed)

    def begin_request(self, now_ms: int) -> bool:
        return self.claims.begin_request(self.claimed)
