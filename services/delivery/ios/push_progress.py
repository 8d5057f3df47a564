"""A push on its way to Apple: who has still to be sent it, and each single sending."""

import asyncio
from collections.abc import Iterable
from typing import Literal, Protocol

from pyroaring import BitMap

from protos.push.v1.push_pb2 import Message
from services.delivery.apns.push import ApnsPush, ApnsResult
from services.delivery.state.pushes import StartedPush
from services.domain.apns.payload import counted, counts_up, payload

FIRST_RETRY_MS = 1_000
LAST_RETRY_MS = 900_000


class Work:
    """One walk after another over those who have not got a push in some partitions.

    `in_flight`: sendings that are not concluded; `missed`: whether somebody has to be walked to again; `badge`: the
    one that all are sent, where each one's does not count up.
    """

    def __init__(self, push: StartedPush, partitions: Iterable[int]) -> None:
        self.push = push
        self.in_flight = 0
        self.missed = False
        self.turn = asyncio.Event()
        self.allowed = 0
        self._body = payload(push.send.message)
        self.counts_up = counts_up(push.send.message)
        self.badge = _badge(push.send.message)
        self._push_type: Literal["alert", "background"] = "alert" if push.send.message.is_notif else "background"
        self._partitions = list(partitions)
        self._left = list(self._partitions)
        self._numbers: BitMap | None = None
        self._at = 0
        self._walks = 0

    @property
    def is_walked(self) -> bool:
        return not self._left

    def is_alive(self, now_ms: int) -> bool:
        return self.push.expires_ms > now_ms and any(
            partition in self.push.active_parts for partition in self._partitions
        )

    def walk_again(self) -> int:
        """Begin anew; returns how many milliseconds to wait before it."""
        self._left = list(self._partitions)
        self._numbers = None
        self.missed = False
        self._walks += 1
        return retry_ms(self._walks)

    def take(self, most: int) -> tuple[int, list[int]] | None:
        """The next devices: the partition and up to so many numbers in it; None at the end."""
        while self._left:
            partition = self._left[-1]
            if self._numbers is None:
                part = self.push.active_parts.get(partition)
                self._numbers, self._at = part.pending_numbers() if part else BitMap(), 0
            numbers = list(self._numbers[self._at : self._at + most])
            self._at += len(numbers)
            if self._at >= len(self._numbers):
                self._left.pop()
                self._numbers = None
            if numbers:
                return partition, numbers
        return None

    def to(self, token: str, topic: str, msgid: int, badge: int | None) -> ApnsPush:
        """A repeat has the same collapse id, so that a device which got it twice shows it once."""
        return ApnsPush(
            token=token,
            topic=topic,
            payload=counted(self._body, badge or 0) if self.counts_up else self._body,
            msgid=msgid,
            expires_ms=self.push.expires_ms,
            push_type=self._push_type,
            priority=10 if self._push_type == "alert" else 5,
            collapse_id=str(msgid),
        )


class Answered(Protocol):
    def answered(self, target: "Target", result: ApnsResult) -> None: ...

    def skipped(self, target: "Target") -> None: ...

    def wanted(self, target: "Target") -> bool: ...


class Target:
    """One message for one device. `elsewhere`: Apple's second service is asked; `renewed`: the provider token was
    changed for it; `unknown`: what happened to an attempt whose outcome nobody knows."""

    __slots__ = (
        "attempts",
        "badge",
        "elsewhere",
        "msgid",
        "number",
        "owner",
        "partition",
        "push",
        "renewed",
        "unknown",
        "work",
    )

    def __init__(
        self, owner: Answered, work: Work, partition: int, number: int, msgid: int, push: ApnsPush, badge: int | None
    ) -> None:
        self.owner = owner
        self.work = work
        self.partition = partition
        self.number = number
        self.msgid = msgid
        self.push = push
        self.badge = badge
        self.attempts = 0
        self.elsewhere = False
        self.renewed = False
        self.unknown = ""

    def wanted(self) -> bool:
        return self.owner.wanted(self)

    def answered(self, result: ApnsResult) -> None:
        self.owner.answered(self, result)

    def skipped(self) -> None:
        self.owner.skipped(self)


def _badge(message: Message) -> int | None:
    is_given = message.is_notif and message.ios.HasField("badge") and message.ios.badge >= 0
    return message.ios.badge if is_given else None


def retry_ms(attempts: int) -> int:
    """How long to wait after so many attempts."""
    return min(FIRST_RETRY_MS << min(attempts - 1, 30), LAST_RETRY_MS)
