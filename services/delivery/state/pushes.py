"""Pushes in the state of delivery: requested, started, ended; recent ids, broadcasts and expiries."""

import heapq
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, assert_never

import msgspec
from pyroaring import BitMap64

from protos.push.v1.push_pb2 import PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, Channel
from services.delivery.state.audience_parts import AudiencePart, ListedAudience, Targets, listed_targets


def channel_of(send: SendPush) -> "Channel.ValueType":
    """Return the channel by which the push's devices are reached: that of their platform."""
    return Channel.CHANNEL_APNS if send.platform == PLATFORM_IOS else Channel.CHANNEL_SOCKETS


# Broadcasts and multicasts that have not expired, whether or not all devices have received them.


@dataclass(slots=True)
class Broadcast:
    """A broadcast or multicast as long as it can be cancelled."""

    appkey: str
    expires_ms: int
    is_cancelled: bool = False


BroadcastRow = tuple[int, str, int, bool]
"""Msgid, appkey, expires_ms, is_cancelled."""


class UnexpiredBroadcasts:
    """Unexpired broadcasts by msgid, folded from push-commands; time advances with the commands' times, not with the
    clock."""

    def __init__(self) -> None:
        self._by_msgid: dict[int, Broadcast] = {}
        self._expiries: list[tuple[int, int]] = []

    def add(self, msgid: int, appkey: str, expires_ms: int, is_cancelled: bool = False) -> None:
        self._by_msgid[msgid] = Broadcast(sys.intern(appkey), expires_ms, is_cancelled)
        heapq.heappush(self._expiries, (expires_ms, msgid))

    def cancel(self, msgid: int, appkey: str) -> None:
        """Mark the broadcast as cancelled; an unknown one or one of another app is ignored."""
        found = self._by_msgid.get(msgid)
        if found is not None and found.appkey == appkey:
            found.is_cancelled = True

    def get(self, msgid: int) -> Broadcast | None:
        """Return the broadcast, also one that has expired since the last command."""
        return self._by_msgid.get(msgid)

    def unexpired(self, msgid: int, appkey: str, now_ms: int) -> Broadcast | None:
        """Return the app's broadcast if its time to live has not passed."""
        found = self._by_msgid.get(msgid)
        return found if found is not None and found.appkey == appkey and found.expires_ms > now_ms else None

    def forget(self, now_ms: int) -> None:
        """Remove the broadcasts that have expired by the time of a command."""
        while self._expiries and self._expiries[0][0] <= now_ms:
            self._by_msgid.pop(heapq.heappop(self._expiries)[1], None)

    def dump(self) -> list[BroadcastRow]:
        return [
            (msgid, each.appkey, each.expires_ms, each.is_cancelled) for msgid, each in sorted(self._by_msgid.items())
        ]

    def load(self, rows: Iterable[BroadcastRow]) -> None:
        """Fill an empty object with the rows of `dump`."""
        for row in rows:
            self.add(*row)


# Dedupe window: the message ids of recent pushes, by which a repeated command is recognised.

_GENERATION = 500_000
_SCHEDULING = "scheduling"


class PushSource(IntEnum):
    """The writer of a push, which may append it again: a front end, or scheduling for a task.

    An untimed push with an idempotency key is a task that is sent at once.
    """

    FRONT_END = 0
    TIMED_TASK = 1
    TASK_AT_ONCE = 2

    @classmethod
    def of(cls, command: PushCommand) -> "PushSource":
        if command.send.task_key:
            return cls.TIMED_TASK
        return cls.TASK_AT_ONCE if command.meta.writer == _SCHEDULING else cls.FRONT_END


class DedupeWindow:
    """Bounded sets of message ids, one for each source of pushes: at least the last 500,000 added to each.

    An edge repeats an append within half a minute. Scheduling repeats what it may have sent before a crash when it
    starts again. Until then front ends may send any number of pushes, but no task is sent, except by the owners of
    other shards of scheduling. Every push under an idempotency key is a task, so the tasks that are sent at once may be
    many, such as 500,000 in half an hour at 300 a second; they shorten the memory of no timed push.
    """

    def __init__(self) -> None:
        self._by_source = {source: _Generations() for source in PushSource}

    def __contains__(self, msgid: int) -> bool:
        return any(msgid in generations for generations in self._by_source.values())

    def add(self, msgid: int, source: PushSource) -> None:
        self._by_source[source].add(msgid)

    def dump(self) -> bytes:
        return msgspec.msgpack.encode([generations.dump() for generations in self._by_source.values()])

    def load(self, blob: bytes) -> None:
        dumped = msgspec.msgpack.decode(blob, type=list[tuple[bytes, bytes]])
        for generations, (recent, older) in zip(self._by_source.values(), dumped, strict=True):
            generations.load(recent, older)


class _Generations:
    """A set of at least the last 500,000 ids that were added, and at most twice as many."""

    def __init__(self) -> None:
        self._recent, self._older = BitMap64(), BitMap64()

    def __contains__(self, msgid: int) -> bool:
        return msgid in self._recent or msgid in self._older

    def add(self, msgid: int) -> None:
        self._recent.add(msgid)
        if len(self._recent) >= _GENERATION:
            self._older, self._recent = self._recent, BitMap64()

    def dump(self) -> tuple[bytes, bytes]:
        return self._recent.serialize(), self._older.serialize()

    def load(self, recent: bytes, older: bytes) -> None:
        self._recent, self._older = BitMap64.deserialize(recent), BitMap64.deserialize(older)


LATE_MS = 86_400_000
"""How long after a cancel or the expiry acknowledgements of a push still count."""


class EndedPart(NamedTuple):
    """The audience part of a partition where the push was cancelled or expired before all devices had it.

    Late acknowledgements count until the log's time reaches `forget_ms` (milliseconds since 1970).
    """

    part: AudiencePart
    forget_ms: int


@dataclass(slots=True)
class UnstartedPush:
    """A push that has not started in the `remaining` partitions; `offset` is the command's offset in push-commands."""

    send: SendPush
    offset: int
    accepted_ms: int
    source: PushSource
    remaining: set[int]
    _targets: dict[int, Targets] | None = None

    @property
    def expires_ms(self) -> int:
        return self.accepted_ms + self.send.period_s * 1000

    @property
    def is_listed(self) -> bool:
        return self.send.audience.HasField("devices")

    @property
    def channel(self) -> "Channel.ValueType":
        return channel_of(self.send)

    def targets(self, partition: int) -> Targets:
        """Return the listed devices in the partition; the caller may change the returned dict."""
        if self._targets is None:
            self._targets = listed_targets(self.send)
        return self._targets[partition]


@dataclass(slots=True)
class StartedPush:
    """A push that has started in at least one partition; `offset` is the command's offset in push-commands.

    `active_parts` holds, by partition, the audiences that are being sent to, `ended_parts` those that only wait for
    late acknowledgements.
    """

    send: SendPush
    offset: int
    expires_ms: int
    active_parts: dict[int, AudiencePart] = field(default_factory=dict)
    ended_parts: dict[int, EndedPart] = field(default_factory=dict)

    @property
    def msgid(self) -> int:
        return self.send.msgid

    @property
    def channel(self) -> "Channel.ValueType":
        return channel_of(self.send)

    @property
    def is_listed(self) -> bool:
        return self.send.audience.HasField("devices")

    @property
    def carries_msgid(self) -> bool:
        """Whether iOS devices get the message id, so that they acknowledge and report the message."""
        return self.send.message.ios.carries_msgid

    @property
    def is_reported(self) -> bool:
        """Whether devices acknowledge and report the message."""
        return self.channel != Channel.CHANNEL_APNS or self.carries_msgid

    @property
    def msgids(self) -> range:
        """All message ids of the push; more than one only for a token list."""
        return range(self.msgid, self.msgid + max(1, self.send.id_count))

    def part(self, partition: int) -> AudiencePart | None:
        """Return the partition's audience part, active or ended."""
        if (active := self.active_parts.get(partition)) is not None:
            return active
        ended = self.ended_parts.get(partition)
        return ended.part if ended is not None else None


def requested_push(command: PushCommand, offset: int, owned: frozenset[int]) -> UnstartedPush:
    """Return the push as requested in the owned partitions: all of them for a filter, those with a listed device for
    a list. ValueError: the audience is not resolved, or its columns have different lengths."""
    send, accepted_ms, source = command.send, command.meta.time_ms, PushSource.of(command)
    match send.audience.WhichOneof("audience"):
        case "everyone" | "filter":
            return UnstartedPush(send, offset, accepted_ms, source, set(owned))
        case "devices":
            targets = listed_targets(send, owned)
            return UnstartedPush(send, offset, accepted_ms, source, set(targets), targets)
        case "tokens" | "aliases" | None:
            raise ValueError(f"push {send.msgid} has no audience that can be resolved")
        case never:
            assert_never(never)


# The pushes that have started, by message id. Those that a snapshot restores stay packed until they are needed.

_BLOCK_IDS = 1024


class SinglePush(NamedTuple):
    """A started push whose one message is pending for one device, for Carillon's own connections."""

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

    def of_channel(self, channel: "Channel.ValueType") -> list[StartedPush]:
        """Return the pushes of a channel, but for packed ones, which only Carillon's own connections have."""
        return [push for push in self._pushes.values() if isinstance(push, StartedPush) and push.channel == channel]

    def packed(self, msgid: int) -> SinglePush | None:
        """Return a push that is packed and stays so; None if it is not packed, or not known."""
        push = self._pushes.get(msgid)
        return push.find(msgid) if isinstance(push, PackedPushes) else None

    def single(self, msgid: int) -> SinglePush | None:
        """Return the push in the form that may be packed; None if it has another audience, or part of it has ended."""
        push = self._pushes[msgid]
        if isinstance(push, PackedPushes):
            return push.find(msgid)
        if (
            push.channel != Channel.CHANNEL_SOCKETS
            or push.ended_parts
            or len(push.active_parts) != 1
            or len(push.msgids) > 1
        ):
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


# The times at which started pushes expire.

_FEW = 1000
"""Entries that are kept in any case, so that the queue of few pushes is not cleaned up again and again."""


class PushExpiries:
    """A queue of pushes by expiry. Entries of pushes that are over are removed once they are the larger part.

    So its size follows the number of pushes that are known, and not of all that started within a time to live.
    """

    def __init__(self, known: Mapping[int, object]) -> None:
        """`known`: the pushes that are not over, by message id; it changes as they start and end."""
        self._known = known
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, expires_ms: int, msgid: int) -> None:
        """Add a known push."""
        heapq.heappush(self._heap, (expires_ms, msgid))
        if len(self._heap) > _FEW + 2 * len(self._known):
            self._heap = [entry for entry in self._heap if entry[1] in self._known]
            heapq.heapify(self._heap)

    def pop_expired(self, now_ms: int) -> list[int]:
        """Remove the pushes that have expired by now; return those that are known, in order of expiry."""
        expired = []
        while self._heap and self._heap[0][0] <= now_ms:
            expired.append(heapq.heappop(self._heap)[1])
        return [msgid for msgid in expired if msgid in self._known]
