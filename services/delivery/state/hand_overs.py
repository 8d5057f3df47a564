"""The messages that channels such as Web Push are to show: which channel has claimed or returned which of them.

The life of one message on one device, of which this module keeps what is in brackets:

    PENDING ── CLAIMED ──> [claimed by a channel] ── HANDED_OVER, FAILED, RECEIVED ──> final outcome
       ▲                        │
       └────── RETURNED ────────┘  [returned by the channel]

- A claim is in the log before the request to the channel leaves. While it lasts the message goes out over no connection
  of Carillon's own, because the channel may show it.
- A channel returns a message that it refused for certain. It is pending again, for the own connection or another
  channel; the same channel never claims it again.
- A message that the channel certainly does not have is recalled when its device connects. It is pending again, and any
  channel may claim it once the device has left.
- Folding records that are folded already changes nothing, once all records after them are folded too.
- A claim outlives the end of its push, so that its answer is still recorded; it is forgotten with the audience.

Bitmaps by channel, so the claims of a broadcast take no record for each device.
"""

from collections.abc import Iterable, Iterator

from pyroaring import BitMap

from services.delivery.state.audience_parts import packed

MAX_CHANNELS = 2
"""Channels that are asked to show one message on one device, one after the other, at most."""

NOBODY = BitMap()
"""The empty set of devices; nobody changes it."""

_Bitmaps = dict[int, BitMap]
"""Device numbers by channel."""

_BitmapRows = list[tuple[int, bytes]]
HandOversRow = tuple[int, int, list[tuple[int, _BitmapRows, _BitmapRows]]]
"""The first message id of a push, a partition, and by message id the claimed and the returned devices by channel."""


class _Message:
    """One message in one partition."""

    __slots__ = ("claimed", "returned")

    def __init__(self) -> None:
        self.claimed: _Bitmaps = {}
        self.returned: _Bitmaps = {}


class HandOvers:
    """Claimed and returned messages by push and partition.

    `push`: the push's first message id; `msgid`: any of its ids.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[int, _Message]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    # --- folding

    def claim(self, push: int, partition: int, msgid: int, channel: int, numbers: BitMap) -> None:
        """Note a claim of these devices' messages, which are pending.

        Ignored where any channel has claimed the message, and where this one has returned it.
        """
        known = self._message(push, partition, msgid) or _Message()
        if new := numbers - _union(known.claimed) - known.returned.get(channel, NOBODY):
            self._parts.setdefault((push, partition), {})[msgid] = known
            known.claimed[channel] = known.claimed.get(channel, NOBODY) | new

    def give_back(self, push: int, partition: int, msgid: int, channel: int, numbers: BitMap) -> None:
        """Note that the channel returned the messages of these devices, where it had claimed them."""
        known = self._message(push, partition, msgid)
        if known is not None and (given := numbers & known.claimed.get(channel, NOBODY)):
            known.returned[channel] = known.returned.get(channel, NOBODY) | given
            _remove(known.claimed, given)

    def recall(self, push: int, partition: int, msgid: int, channel: int, numbers: BitMap) -> None:
        """Note that the claim of these devices' messages by the channel is undone, where there is one."""
        known = self._message(push, partition, msgid)
        if known is not None and (claimed := known.claimed.get(channel)):
            known.claimed[channel] = claimed - numbers
            if not known.claimed[channel]:
                del known.claimed[channel]
            self._forget_if_empty(push, partition, msgid, known)

    def conclude(self, push: int, partition: int, msgid: int, numbers: Iterable[int]) -> None:
        """Forget these devices: their messages have a final outcome, or were withdrawn from them."""
        if (known := self._message(push, partition, msgid)) is None:
            return
        concluded = BitMap(numbers)
        _remove(known.claimed, concluded)
        _remove(known.returned, concluded)
        self._forget_if_empty(push, partition, msgid, known)

    def _forget_if_empty(self, push: int, partition: int, msgid: int, known: _Message) -> None:
        if not known.claimed and not known.returned:
            messages = self._parts[push, partition]
            del messages[msgid]
            if not messages:
                del self._parts[push, partition]

    def forget(self, push: int, partition: int) -> None:
        """Forget the push in a partition."""
        self._parts.pop((push, partition), None)

    # --- queries

    def knows(self, push: int, partition: int) -> bool:
        """Whether a channel has claimed or returned a message of the push in the partition."""
        return (push, partition) in self._parts

    def claimed(self, push: int, partition: int, msgid: int) -> BitMap:
        """Return the devices whose message a channel has claimed; the caller does not change it."""
        known = self._message(push, partition, msgid)
        return _union(known.claimed) if known is not None else NOBODY

    def is_claimed(self, push: int, partition: int, msgid: int, number: int, channel: int) -> bool:
        """Whether this channel has claimed the device's message."""
        known = self._message(push, partition, msgid)
        return known is not None and number in known.claimed.get(channel, ())

    def returned(self, push: int, partition: int, msgid: int, channel: int) -> BitMap:
        """Return the devices whose message the channel has returned; the caller does not change it."""
        known = self._message(push, partition, msgid)
        return known.returned.get(channel, NOBODY) if known is not None else NOBODY

    def exhausted(self, push: int, partition: int, msgid: int) -> BitMap:
        """Return the devices whose message MAX_CHANNELS channels have returned."""
        known = self._message(push, partition, msgid)
        exhausted, once = BitMap(), BitMap()
        for numbers in known.returned.values() if known is not None else ():
            exhausted |= once & numbers
            once |= numbers
        return exhausted

    def claims(self) -> Iterator[tuple[int, int, int, int, BitMap]]:
        """Return the first message id of each push, partition, message id, channel and the devices that it claimed."""
        for (push, partition), messages in self._parts.items():
            for msgid, known in messages.items():
                for channel, numbers in known.claimed.items():
                    yield push, partition, msgid, channel, numbers

    # --- snapshots

    def dump(self) -> list[HandOversRow]:
        return [
            (*part, [(msgid, _rows(each.claimed), _rows(each.returned)) for msgid, each in sorted(messages.items())])
            for part, messages in sorted(self._parts.items())
        ]

    def load(self, rows: Iterable[HandOversRow]) -> None:
        """Fill an empty object with the rows of `dump`."""
        for push, partition, messages in rows:
            loaded = self._parts[push, partition] = {}
            for msgid, claimed, returned in messages:
                loaded[msgid] = message = _Message()
                message.claimed = {channel: BitMap.deserialize(numbers) for channel, numbers in claimed}
                message.returned = {channel: BitMap.deserialize(numbers) for channel, numbers in returned}

    def _message(self, push: int, partition: int, msgid: int) -> _Message | None:
        messages = self._parts.get((push, partition))
        return messages.get(msgid) if messages is not None else None


def _union(bitmaps: _Bitmaps) -> BitMap:
    return BitMap.union(*bitmaps.values()) if bitmaps else NOBODY


def _remove(bitmaps: _Bitmaps, numbers: BitMap) -> None:
    for channel in list(bitmaps):
        bitmaps[channel] = bitmaps[channel] - numbers
        if not bitmaps[channel]:
            del bitmaps[channel]


def _rows(bitmaps: _Bitmaps) -> _BitmapRows:
    return [(channel, packed(numbers)) for channel, numbers in sorted(bitmaps.items())]
