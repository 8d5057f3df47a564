"""What a gateway has sent over one connection, so that it sends nothing there twice."""

from collections.abc import Collection, Iterable


class SentPushes:
    """The pushes that were sent over one connection: those that the device has not acknowledged, with their times in
    ms, and those that an owner of delivery may send again because it does not know of their acknowledgements yet."""

    __slots__ = ("_repeatable", "_times_ms")

    def __init__(self) -> None:
        self._times_ms: dict[int, int] = {}
        self._repeatable: Collection[int] = ()

    def note(self, msgid: int, now_ms: int) -> None:
        self._times_ms.setdefault(msgid, now_ms)

    def has(self, msgid: int) -> bool:
        """Return whether the push was sent and must not be sent again."""
        return msgid in self._times_ms or msgid in self._repeatable

    def is_unacknowledged(self, msgid: int) -> bool:
        return msgid in self._times_ms

    def acknowledge(self, msgids: Iterable[int]) -> int:
        """Take the pushes as acknowledged; return how many of them were unacknowledged until now."""
        return sum(self._times_ms.pop(msgid, None) is not None for msgid in msgids)

    def begin_stream(self) -> None:
        """Note that another stream from delivery begins.

        The gateway has handed in all acknowledgements before it announces the connection over the new stream. What the
        device acknowledges after that may reach delivery after it has sent these pushes again.
        """
        self._repeatable = frozenset(self._times_ms)

    @property
    def oldest_ms(self) -> int | None:
        """When the first of the unacknowledged pushes was sent."""
        return next(iter(self._times_ms.values()), None)

    @property
    def is_empty(self) -> bool:
        return not self._times_ms and not self._repeatable


NOTHING_SENT = SentPushes()
"""What all connections share over which nothing was sent that is unacknowledged or may come again."""
