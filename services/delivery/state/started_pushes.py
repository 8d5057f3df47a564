"""The pushes that have started, by message id. What a snapshot restores of them stays packed until it is needed."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, MutableMapping, Sequence
from typing import NamedTuple

from protos.push.v1.push_pb2 import SendPush
from services.delivery.state.audience_parts import ListedAudience
from services.delivery.state.pushes import StartedPush

_BLOCK_IDS = 1024


class SinglePush(NamedTuple):
    """A started push whose one message is pending for one Android device."""

    msgid: int
    appkey: str
    partition: int
    number: int
    offset: int
    expires_ms: int
    send: bytes


PackedRow = tuple[list[str], bytes, bytes, bytes, bytes, bytes, bytes, list[bytes]]
"""Packed pushes in a snapshot: their appkeys, columns, and commands."""


class PackedPushes:
    """Pushes with one pending message each, as columns in the order of their message ids.

    An undelivered message takes a fifth of the memory of a StartedPush, and a twentieth of its time to restore.
    """

    def __init__(self, pushes: Sequence[SinglePush] = ()) -> None:
        self.appkeys = sorted({push.appkey for push in pushes})
        places = {appkey: place for place, appkey in enumerate(self.appkeys)}
        self.apps = array("H", (places[push.appkey] for push in pushes))
        self.partitions = array("H", (push.partition for push in pushes))
        self.numbers = array("I", (push.number for push in pushes))
        self.msgids = array("Q", (push.msgid for push in pushes))
        self.offsets = array("Q", (push.offset for push in pushes))
        self.expiries_ms = array("q", (push.expires_ms for push in pushes))
        self._sends = [push.send for push in pushes]

    def dump(self) -> PackedRow:
        columns = (self.apps, self.partitions, self.numbers, self.msgids, self.offsets, self.expiries_ms)
        apps, partitions, numbers, msgids, offsets, expiries_ms = (column.tobytes() for column in columns)
        return self.appkeys, apps, partitions, numbers, msgids, offsets, expiries_ms, self._sends

    @classmethod
    def load(cls, row: PackedRow) -> "PackedPushes":
        loaded = cls()
        loaded.appkeys, apps, partitions, numbers, msgids, offsets, expiries_ms, loaded._sends = row
        loaded.apps.frombytes(apps)
        loaded.partitions.frombytes(partitions)
        loaded.numbers.frombytes(numbers)
        loaded.msgids.frombytes(msgids)
        loaded.offsets.frombytes(offsets)
        loaded.expiries_ms.frombytes(expiries_ms)
        return loaded

    def find(self, msgid: int) -> SinglePush:
        at = bisect_left(self.msgids, msgid)
        return SinglePush(
            msgid,
            self.appkeys[self.apps[at]],
            self.partitions[at],
            self.numbers[at],
            self.offsets[at],
            self.expiries_ms[at],
            self._sends[at],
        )


class StartedPushes(MutableMapping[int, StartedPush]):
    """Started pushes by their first message id. `holding` also finds a push by another id of its token list."""

    def __init__(self) -> None:
        self._pushes: dict[int, StartedPush | PackedPushes] = {}
        self._lists: dict[int, list[range]] = {}

    def __getitem__(self, msgid: int) -> StartedPush:
        found = self._pushes[msgid]
        if isinstance(found, PackedPushes):
            found = self._pushes[msgid] = _unpacked(found.find(msgid))
        return found

    def __setitem__(self, msgid: int, push: StartedPush) -> None:
        self._pushes[msgid] = push
        if len(push.msgids) > 1:
            for block in _blocks(push.msgids):
                self._lists.setdefault(block, []).append(push.msgids)

    def __delitem__(self, msgid: int) -> None:
        push = self._pushes.pop(msgid)
        if isinstance(push, PackedPushes) or len(push.msgids) == 1:
            return
        for block in _blocks(push.msgids):
            self._lists[block].remove(push.msgids)
            if not self._lists[block]:
                del self._lists[block]

    def __contains__(self, msgid: object) -> bool:
        return msgid in self._pushes

    def __iter__(self) -> Iterator[int]:
        return iter(self._pushes)

    def __len__(self) -> int:
        return len(self._pushes)

    def add_packed(self, pushes: PackedPushes) -> None:
        self._pushes |= dict.fromkeys(pushes.msgids, pushes)

    def holding(self, msgid: int) -> StartedPush | None:
        """Return the push to which the message id belongs."""
        if msgid in self._pushes:
            return self[msgid]
        msgids = next((each for each in self._lists.get(msgid // _BLOCK_IDS, ()) if msgid in each), None)
        return None if msgids is None else self[msgids.start]

    def of_ios(self) -> list[StartedPush]:
        """Return the pushes to iOS devices, none of which is packed."""
        return [push for push in self._pushes.values() if isinstance(push, StartedPush) and push.is_ios]

    def single(self, msgid: int) -> SinglePush | None:
        """Return the push in the form that may be packed; None if it has another audience, or part of it has ended."""
        push = self._pushes[msgid]
        if isinstance(push, PackedPushes):
            return push.find(msgid)
        if push.is_ios or push.ended_parts or len(push.active_parts) != 1 or len(push.msgids) > 1:
            return None
        ((partition, part),) = push.active_parts.items()
        if not isinstance(part, ListedAudience) or len(part.targets) != 1 or part.withdrawn:
            return None
        ((number, _),) = part.targets.items()
        send = push.send.SerializeToString(deterministic=True)
        return SinglePush(msgid, push.send.appkey, partition, number, push.offset, push.expires_ms, send)


def _unpacked(single: SinglePush) -> StartedPush:
    push = StartedPush(SendPush.FromString(single.send), single.offset, single.expires_ms)
    push.active_parts[single.partition] = ListedAudience({single.number: [single.msgid]})
    return push


def _blocks(msgids: range) -> range:
    """Return the blocks of ids in which a token list has message ids."""
    return range(msgids[0] // _BLOCK_IDS, msgids[-1] // _BLOCK_IDS + 1)
