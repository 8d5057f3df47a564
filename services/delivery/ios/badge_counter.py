"""The badges that an iOS app's devices are sent by pushes that ask to count up."""

from collections import OrderedDict

from services.delivery.state.badges import Badges
from services.domain.apns.payload import LARGEST_BADGE

REMEMBERED = 100_000
"""Devices whose last badge may not be in the state yet; the longest unused are forgotten first."""


class BadgeCounter:
    """Counts on from what the log says a device was sent, and from what it has been given since."""

    def __init__(self, appkey: str, badges: Badges) -> None:
        self._appkey = appkey
        self._badges = badges
        self._given: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()

    def next(self, partition: int, number: int, active_ms: int, now_ms: int) -> int:
        """One more than the device shows; its app was in use last at `active_ms`, which took the badge away."""
        badge, given_ms = self._given.get((partition, number), (0, 0))
        if given_ms <= active_ms:
            badge = self._badges.last((self._appkey, partition), number, active_ms)
        return self.note(partition, number, min(badge + 1, LARGEST_BADGE), now_ms)

    def note(self, partition: int, number: int, badge: int, now_ms: int) -> int:
        """The device is sent this badge."""
        self._given[partition, number] = badge, now_ms
        self._given.move_to_end((partition, number))
        if len(self._given) > REMEMBERED:
            self._given.popitem(last=False)
        return badge
