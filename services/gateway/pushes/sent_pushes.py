"""The pushes that a gateway has sent over one connection, or seen acknowledged: it does not send them there again."""

from collections.abc import Iterable

_MAX_HEARD = 32


class SentPushes:
    """The pushes that were sent over one connection and are not acknowledged, with their times in ms; and those that
    delivery may send to it again, because it does not know yet that the device has acknowledged them."""

    __slots__ = ("_repeatable", "_times_ms")

    def __init__(self) -> None:
        self._times_ms: dict[int, int] = {}
        self._repeatable: set[int] = set()

    def note(self, msgid: int, now_ms: int) -> None:
        self._times_ms.setdefault(msgid, now_ms)

    def has(self, msgid: int) -> bool:
        """Return whether the device has got the push, or gets it over this connection, so that it is not sent again."""
        return msgid in self._times_ms or msgid in self._repeatable

    def is_unacknowledged(self, msgid: int) -> bool:
        return msgid in self._times_ms

    def acknowledge(self, msgids: Iterable[int]) -> int:
        """Take the pushes as acknowledged; return how many were not sent over this connection, or are so already.

        Such were sent over an earlier one; delivery may have sent them once more before it gets the acknowledgement.
        """
        unsent = [msgid for msgid in msgids if self._times_ms.pop(msgid, None) is None]
        if len(self._repeatable) < _MAX_HEARD:
            self._repeatable.update(unsent[:_MAX_HEARD])
        return len(unsent)

    def begin_stream(self) -> None:
        """Note that another stream from delivery begins.

        The gateway has handed in all acknowledgements before it announces the connection over the new stream. What the
        device acknowledges after that may reach delivery after it has sent these pushes again.
        """
        self._repeatable = set(self._times_ms)

    @property
    def oldest_ms(self) -> int | None:
        """When the first of the unacknowledged pushes was sent."""
        return next(iter(self._times_ms.values()), None)

    @property
    def is_empty(self) -> bool:
        return not self._times_ms and not self._repeatable


NOTHING_SENT = SentPushes()
"""Shared by all connections over which nothing was sent or acknowledged."""
