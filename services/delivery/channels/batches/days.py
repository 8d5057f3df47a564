"""Days in China, where vendors count the messages of a day, and how many of them a device has had."""

from pyroaring import BitMap

from services.delivery.state.audience_parts import DeviceAddress

_DAY_MS = 86_400_000
_CHINA_MS = 8 * 3_600_000


def next_day_ms(now_ms: int) -> int:
    """Return when the next day begins in China."""
    return now_ms + _DAY_MS - (now_ms + _CHINA_MS) % _DAY_MS


class DailyCounts:
    """How many messages each device has had on this day. Only those that had one cost memory: a bit for each message.

    It is a guess, because vendors count over all senders of an app, and a restart begins anew: it saves requests that a
    vendor would refuse.
    """

    def __init__(self) -> None:
        self._until_ms = 0
        self._had: dict[tuple[str, int], list[BitMap]] = {}
        """By app and partition: the devices that had one message at least, two, and so on."""

    def is_empty(self, now_ms: int) -> bool:
        """Whether no device has had a message on this day."""
        self._begin_day(now_ms)
        return not self._had

    def reached(self, device: DeviceAddress, cap: int, now_ms: int) -> bool:
        """Whether the device has had so many messages."""
        self._begin_day(now_ms)
        had = self._had.get((device.appkey, device.partition), ())
        return len(had) >= cap and device.number in had[cap - 1]

    def add(self, device: DeviceAddress, now_ms: int) -> None:
        """Count a message."""
        self._begin_day(now_ms)
        had = self._had.setdefault((device.appkey, device.partition), [])
        for devices in had:
            if device.number not in devices:
                devices.add(device.number)
                return
        had.append(BitMap((device.number,)))

    def _begin_day(self, now_ms: int) -> None:
        if now_ms >= self._until_ms:
            self._until_ms = next_day_ms(now_ms)
            self._had.clear()
