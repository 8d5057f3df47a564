"""The pushes that a gateway does not send over a connection again: the device has them, or will have them by it."""

from collections.abc import Collection, Iterable

_MAX_REPEATABLE = 32
_MAX_WITHDRAWN = 2000
"""Upper bound of the withdrawn pushes of a connection; at most half as many wait for a device at a time."""

_NONE: frozenset[int] = frozenset()


class SentPushes:
    """The unacknowledged pushes of a connection, with the times in ms at which they were sent, and others not to send.

    Repeatable: delivery may send the push once more, because it may not know yet that the device has acknowledged it.
    Withdrawn: the push was on its way to the connection when delivery dropped it.
    """

    __slots__ = ("_repeatable", "_times_ms", "_withdrawn")

    def __init__(self) -> None:
        self._times_ms: dict[int, int] = {}
        self._repeatable: set[int] = set()
        self._withdrawn: Collection[int] = _NONE

    def note(self, msgid: int, now_ms: int) -> None:
        self._times_ms.setdefault(msgid, now_ms)

    def has(self, msgid: int) -> bool:
        """Return whether the push is unacknowledged, repeatable or withdrawn, so that it is not sent any more."""
        return msgid in self._times_ms or msgid in self._repeatable or msgid in self._withdrawn

    def is_unacknowledged(self, msgid: int) -> bool:
        return msgid in self._times_ms

    def acknowledge(self, msgids: Iterable[int]) -> int:
        """Note acknowledged pushes; return how many were not sent over this connection, or were acknowledged before.

        Those may have been sent over an earlier connection, and delivery may send them once more before it gets the
        acknowledgement: they are repeatable.
        """
        unsent = [msgid for msgid in msgids if self._times_ms.pop(msgid, None) is None]
        if len(self._repeatable) < _MAX_REPEATABLE:
            self._repeatable.update(unsent[:_MAX_REPEATABLE])
        return len(unsent)

    def withdraw(self, msgids: Iterable[int]) -> None:
        """Note pushes that delivery has dropped; the latest _MAX_WITHDRAWN are kept."""
        self._withdrawn = dict.fromkeys([*self._withdrawn, *msgids][-_MAX_WITHDRAWN:])

    def begin_stream(self) -> None:
        """Note that a new stream from delivery begins: all unacknowledged pushes are repeatable from now on.

        The gateway has handed in all earlier acknowledgements before it announces the connection over the new stream.
        A later one may reach delivery after it has sent the push again.
        """
        self._repeatable = set(self._times_ms)

    @property
    def oldest_ms(self) -> int | None:
        """When the first of the unacknowledged pushes was sent."""
        return next(iter(self._times_ms.values()), None)

    @property
    def is_empty(self) -> bool:
        return not self._times_ms and not self._repeatable and not self._withdrawn


NOTHING_SENT = SentPushes()
"""Shared by all connections over which nothing was sent or acknowledged."""
