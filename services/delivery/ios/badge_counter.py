"""Badges of an iOS app's devices, for pushes that increment them."""

from collections import OrderedDict

from services.delivery.state.badges import Badges
from services.domain.apns.payload import MAX_BADGE

CACHED_DEVICES = 100_000
"""Upper bound of the devices whose latest badge is cached; the least recently used are forgotten first."""


class BadgeCounter:
    """Counts from the last badge a device was sent: as folded from the log, or as assigned since by this process."""

    def __init__(self, appkey: str, badges: Badges) -> None:
        self._appkey = appkey
        self._badges = badges
        self._assigned: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()

    def increment(self, partition: int, number: int, active_ms: int, now_ms: int) -> int:
        """Assign one more than the device shows. Opening the app, last at `active_ms`, clears the badge."""
        badge, assigned_ms = self._assigned.get((partition, number), (0, 0))
        if assigned_ms <= active_ms:
            badge = self._badges.last((self._appkey, partition), number, active_ms)
        return self.note(partition, number, min(badge + 1, MAX_BADGE), now_ms)

    def note(self, partition: int, number: int, badge: int, now_ms: int) -> int:
        """Remember the badge that the device is sent now; returns it."""
        self._assigned[partition, number] = badge, now_ms
        self._assigned.move_to_end((partition, number))
        if len(self._assigned) > CACHED_DEVICES:
            self._assigned.popitem(last=False)
        return badge
