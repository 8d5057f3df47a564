"""Progress of one push to Apple through its audience, in passes, and of each message to its final outcome."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal, Protocol, TypeAlias

from pyroaring import BitMap

from protos.push.v1.push_pb2 import Message, SendPush
from services.delivery.channels.apns.reasons import RetryHistory, backoff_ms
from services.delivery.channels.apns.request import ApnsPush, ApnsResult
from services.delivery.state.pushes import StartedPush
from services.domain.apns_payload import increments_badge, payload, possession_payload, with_badge
from services.domain.device_protocol.possession import opened_code
from services.domain.master_key import Keys
from services.errors import CarillonError
from services.process.logs import logger

PayloadOf: TypeAlias = Callable[[SendPush], bytes]
"""Returns the JSON that the devices of a push are sent."""


class PushProgress:
    """The passes of one push over some partitions.

    `in_flight`: chunks and messages not concluded yet. `needs_pass`: devices were skipped, so another pass is due.
    `passes`: how many passes have begun after the first one. `badge`: the badge sent to every device, None if the push
    has none or increments badges. `allowance`: how many devices the rate limiter lets the push have in its next turn;
    `turn_done` is set when that turn has been taken (both unused without `qps`).
    """

    def __init__(self, push: StartedPush, partitions: Iterable[int], payload_of: PayloadOf) -> None:
        message = push.send.message
        self.push = push
        self.in_flight = 0
        self.needs_pass = False
        self.turn_done = asyncio.Event()
        self.allowance = 0
        self.passes = 0
        self.increments_badge = increments_badge(message)
        self.badge = _fixed_badge(message)
        self._payload = payload_of(push.send)
        self._push_type: Literal["alert", "background"] = "alert" if message.is_notif else "background"
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

    def apns_push(self, token: str, topic: str, msgid: int, badge: int | None) -> ApnsPush:
        """Build the push to one device. Retries have the same collapse id, so that the device shows them once."""
        return ApnsPush(
            token=token,
            topic=topic,
            payload=with_badge(self._payload, badge or 0) if self.increments_badge else self._payload,
            msgid=msgid,
            expires_ms=self.push.expires_ms,
            push_type=self._push_type,
            priority=10 if self._push_type == "alert" else 5,
            collapse_id=str(msgid),
        )


def apns_payload(keys: Keys, send: SendPush) -> bytes:
    """Return the payload of a push; that of a silent push has the possession code that is sealed with these keys.

    A code that cannot be opened is logged, and the device gets an empty one.
    """
    sealed = send.message.ios.sealed_possession_code
    if not sealed:
        return payload(send.message)
    try:
        return possession_payload(opened_code(keys, sealed, send.appkey))
    except CarillonError as error:
        logger.error("a possession code cannot be opened", appkey=send.appkey, msgid=send.msgid, error=str(error))
        return possession_payload("")


def _fixed_badge(message: Message) -> int | None:
    has_badge = message.is_notif and message.ios.HasField("badge") and message.ios.badge >= 0
    return message.ios.badge if has_badge else None


# One message for one iOS device: it is handed to Apple, repeatedly if needed, until it has its final outcome.

_NOT_SENT_YET = RetryHistory()


class MessageCallbacks(Protocol):
    """Receives the callbacks that the APNs sender makes for a message."""

    def is_wanted(self, message: "ApnsMessage") -> bool: ...

    def answered(self, message: "ApnsMessage", result: ApnsResult) -> None: ...

    def skipped(self, message: "ApnsMessage") -> None: ...


class ApnsMessage:
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
