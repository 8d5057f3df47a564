"""Decides which messages are handed over to channels now, and which ones the devices' own connections must not send.

A message is due when it is pending, its device has not been connected for the grace, and the device has an address on a
channel that may be used and can carry it. Nothing is kept for a connected device: a device that disconnects is noted
until the grace is over or it is back. All work is done in slices of at most _SLICE devices, so that a broadcast to many
addresses delays nothing else for long. Pure: no waiting, no clock, no input or output.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from pyroaring import BitMap

from protos.push.v1.push_pb2 import IMPORTANCE_HIGH
from protos.registry.v1.apps_pb2 import ROUTE_AUTO, ROUTE_OWN, ROUTE_VENDOR, Route
from services.delivery.channels.sockets.presence import Presence
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.audience_parts import AppPartition, DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.hand_overs import NOBODY
from services.delivery.state.pushes import StartedPush

_SLICE = 1000
"""Devices whose messages are looked at in one step, at most."""

_STEPS = 200
"""Steps of one call of `take`, at most."""


class UsableChannels(Protocol):
    """The present knowledge of the channels: which ones may be used, and which devices have an address on them."""

    @property
    def is_any_usable(self) -> bool:
        """Whether any app may use a channel."""

    def of_app(self, appkey: str) -> Sequence[int]:
        """Return the channels that the app has credentials for, whether or not they are stopped."""

    def usable(self, appkey: str) -> Sequence[int]:
        """Return the app's channels that are not stopped, in the order in which they are tried.

        Changes are reported by `HandOvers.channels_changed`.
        """

    def can_carry(self, channel: int, push: StartedPush) -> bool:
        """Whether the channel can carry the push's message, also shortened."""

    def addressed(self, app_partition: AppPartition, channel: int) -> BitMap:
        """Return the devices with an address on the channel; the caller does not change it."""

    def route(self, appkey: str) -> "Route.ValueType":
        """Return the route of the app's pushes that name none. `HandOvers.channels_changed` reports changes."""


class Claim(NamedTuple):
    """Devices whose message a channel is to show."""

    push: StartedPush
    partition: int
    msgid: int
    channel: int
    numbers: BitMap


class _Work(NamedTuple):
    """A push that may be due on devices of a partition: on these, or on all of its audience (None)."""

    msgid: int
    partition: int
    numbers: BitMap | None


class _Unseen(NamedTuple):
    """A started push to be looked at; `was_vendor_first`: the app's route withheld it from connected devices before."""

    msgid: int
    was_vendor_first: bool


class _Absence(NamedTuple):
    """A device whose connection has ended, until the grace is over at `until_ms`.

    `is_certain`: the connection has ended; False if only the stream to its gateway has.
    """

    until_ms: int
    is_certain: bool


FreeCapacity = Callable[[str, int], int]
"""Returns how many more messages of the app the channel may claim now."""


class _Taking:
    """The claims of one call of `take`, and how many devices it has looked at."""

    def __init__(self, free: FreeCapacity) -> None:
        self.claims: list[Claim] = []
        self.looked = 0
        self._free = free
        self._taken: Counter[tuple[str, int]] = Counter()
        self._claimed: dict[tuple[int, int], BitMap] = {}

    def free(self, appkey: str, channel: int) -> int:
        return self._free(appkey, channel) - self._taken[appkey, channel]

    def claimed(self, msgid: int, partition: int) -> BitMap:
        """Return the devices for which this call claims the message already: the same work may be queued twice."""
        return self._claimed.get((msgid, partition), NOBODY)

    def claim(self, claim: Claim) -> None:
        self.claims.append(claim)
        self._claimed[claim.msgid, claim.partition] = self.claimed(claim.msgid, claim.partition) | claim.numbers
        self._taken[claim.push.send.appkey, claim.channel] += len(claim.numbers)


class DueHandOvers:
    """A queue of pushes and devices whose messages may be due. `take` decides by the state at the time of its call.

    Callers report every event that can make a message due: a start, the end of a connection and of its grace, a return
    by another channel, a new address, a change of channels. For one grace after `begin` nothing is due, because
    gateways have not announced their connections yet.
    """

    def __init__(
        self,
        state: DeliveryState,
        presence: Presence,
        recorder: OutcomeRecorder,
        is_paused: Callable[[str], bool],
        channels: UsableChannels,
        grace_ms: int,
    ) -> None:
        self._state = state
        self._presence = presence
        self._recorder = recorder
        self._is_paused = is_paused
        self._channels = channels
        self._grace_ms = grace_ms
        self._settled_ms: int | None = None
        self._unseen: deque[_Unseen] = deque()
        self._released: list[StartedPush] = []
        self._work: deque[_Work] = deque()
        self._held: dict[str, deque[_Work]] = {}
        self._without_capacity: dict[tuple[str, int], deque[_Work]] = {}
        self._absent: dict[AppPartition, dict[int, _Absence]] = {}
        self._graces: deque[tuple[int, DeviceAddress]] = deque()
        self._arrived: dict[DeviceAddress, None] = {}
        self.changed = asyncio.Event()
        """Set whenever `next_ms` may have become earlier."""

    # --- what makes messages due

    def begin(self, now_ms: int) -> None:
        """Look at all pushes that have started, once the grace is over."""
        self._settled_ms = now_ms + self._grace_ms
        if self._channels.is_any_usable:
            self._unseen.extend(_Unseen(msgid, was_vendor_first=False) for msgid in self._state.started)
        self.changed.set()

    def reconsider(self, appkey: str, *, was_vendor_first: bool = False) -> None:
        """Look at all started pushes of the app again: its channels or its route have changed, or its devices have new
        addresses. `was_vendor_first`: the app's route was ROUTE_VENDOR until now.
        """
        self._unseen.extend(
            _Unseen(msgid, was_vendor_first)
            for msgid in self._state.started
            if (packed := self._state.started.packed(msgid)) is None or packed.appkey == appkey
        )
        self.changed.set()

    def start(self, push: StartedPush, partitions: Iterable[int]) -> None:
        """Look at a push that has just started in these partitions."""
        if self._channels_of(push):
            self._work.extend(_Work(push.msgid, partition, None) for partition in partitions)
            self.changed.set()

    def look_at(self, push: StartedPush, partition: int, numbers: BitMap) -> None:
        """Look at a push on these devices."""
        self._work.append(_Work(push.msgid, partition, numbers))
        self.changed.set()

    def look_at_devices(self, app_partition: AppPartition, numbers: BitMap) -> None:
        """Look at everything that is pending for these devices of an app."""
        appkey, partition = app_partition
        for number in numbers:
            for msgid in self._state.mailbox(DeviceAddress(appkey, partition, number)):
                self._work.append(_Work(msgid, partition, BitMap([number])))
        for msgid in self._state.broadcasts_in_progress(app_partition):
            self._work.append(_Work(msgid, partition, numbers))
        self.changed.set()

    def left(self, device: DeviceAddress, now_ms: int, is_certain: bool = True) -> None:
        """Note that the device is not connected any more; only urgent messages are due at once.

        Also of a device without a known address: it may have set one just now, and have a message on its way.
        """
        if not self._channels.of_app(device.appkey):
            return
        until_ms = now_ms + self._grace_ms
        self._absent.setdefault(device.app_partition, {})[device.number] = _Absence(until_ms, is_certain)
        self._graces.append((until_ms, device))
        self.changed.set()
        if is_certain and self._is_addressed(device):
            pending = [*self._state.mailbox(device), *self._state.broadcasts_in_progress(device.app_partition)]
            urgent = [msgid for msgid in pending if _is_urgent(self._state.started[msgid])]
            self._work.extend(_Work(msgid, device.partition, BitMap([device.number])) for msgid in urgent)

    def came(self, device: DeviceAddress) -> None:
        """Note that the device is connected."""
        self._forget_absence(device)
        if self._state.hand_overs:
            self.note_arrived([device])

    def note_arrived(self, devices: Iterable[DeviceAddress]) -> None:
        """Let `take_arrived` return these devices, whose own connections may be the first to show messages by now."""
        self._arrived |= dict.fromkeys(devices)
        self.changed.set()

    def _forget_absence(self, device: DeviceAddress) -> None:
        if (absent := self._absent.get(device.app_partition)) and absent.pop(device.number, None) and not absent:
            del self._absent[device.app_partition]

    # --- what the own connections must not send

    def withholds(self, push: StartedPush, partition: int) -> bool:
        """Whether `withheld` may return a device for a message of the push."""
        is_claimed = self._state.hand_overs.knows(push.msgid, partition) or self._recorder.has_unwritten_claims
        return is_claimed or self._route(push) == ROUTE_VENDOR

    def withheld(self, push: StartedPush, partition: int, msgid: int) -> BitMap:
        """Return the devices that are not sent the message over their own connections; the caller does not change it.

        A channel has claimed it for them, or is to try first.
        """
        claimed = self._claimed(push, partition, msgid)
        if self._route(push) != ROUTE_VENDOR or not self._channels_of(push):
            return claimed
        part = push.part(partition)
        unsent = self._unsent(push, partition, msgid, part.pending_numbers() if part is not None else NOBODY)
        return claimed.union(*(numbers for _, numbers in self._choices(push, partition, msgid, unsent)))

    def _unsent(self, push: StartedPush, partition: int, msgid: int, numbers: BitMap) -> BitMap:
        """Return the devices to which the message was not sent by any way yet, so that a channel may be the first."""
        sent = self._state.sent_messages.sent_to((push.send.appkey, partition), msgid)
        if sent is None:
            return NOBODY
        return numbers - sent - self._recorder.unwritten_sent(partition, msgid, numbers)

    def _claimed(self, push: StartedPush, partition: int, msgid: int) -> BitMap:
        claimed = self._state.hand_overs.claimed(push.msgid, partition, msgid)
        unwritten = self._recorder.unwritten_claims(partition, msgid)
        return claimed | unwritten if unwritten else claimed

    def is_own_first(self, push: StartedPush, partition: int, number: int) -> bool:
        """Whether the device is connected, and its own connection is to show the push rather than a channel."""
        connections: Collection[int] = self._presence.connections((push.send.appkey, partition))
        return number in connections and self._route(push) != ROUTE_VENDOR

    def take_arrived(self) -> list[DeviceAddress]:
        """Return some of the devices that have connected since channels have claimed messages; each is returned once.

        `changed` is set if there are more.
        """
        arrived = list(islice(self._arrived, _SLICE))
        for device in arrived:
            del self._arrived[device]
        if self._arrived:
            self.changed.set()
        return arrived

    def take_released(self) -> list[StartedPush]:
        """Return pushes that may be withheld from fewer devices than before, as channels or the route have changed."""
        released, self._released = self._released, []
        return released

    # --- what is due

    def next_ms(self, now_ms: int) -> int | None:
        """Return when `take` may return something; None: not before something is told to this object."""
        if self._settled_ms is None:
            return None
        if self._work or self._unseen:
            return max(self._settled_ms, now_ms)
        return max(self._settled_ms, self._graces[0][0]) if self._graces else None

    def take(self, now_ms: int, free: FreeCapacity) -> list[Claim]:
        """Return claims for messages that are due, at most as many for each app and channel as `free` allows.

        The caller records the claims before any other task runs.
        """
        if self._settled_ms is None or now_ms < self._settled_ms:
            return []
        self._end_graces(now_ms)
        self._look_at_unseen()
        for appkey in [appkey for appkey in self._held if not self._is_paused(appkey)]:
            self._work.extend(self._held.pop(appkey))
        taking = _Taking(free)
        for _ in range(_STEPS):
            if not self._work:
                self._take_up_one(taking)
            if not self._work or taking.looked >= _SLICE:
                break
            self._judge(self._work.popleft(), now_ms, taking)
        if any(taking.free(*key) > 0 for key in self._without_capacity):
            self.changed.set()
        return taking.claims

    def _end_graces(self, now_ms: int) -> None:
        """Look at the devices that were not connected for the grace."""
        over: dict[AppPartition, BitMap] = {}
        for _ in range(_SLICE):
            if not self._graces or self._graces[0][0] > now_ms:
                break
            until_ms, device = self._graces.popleft()
            absence = self._absent.get(device.app_partition, {}).get(device.number)
            if absence is not None and absence.until_ms == until_ms:
                self._forget_absence(device)
                if self._is_addressed(device):
                    over.setdefault(device.app_partition, BitMap()).add(device.number)
        for app_partition, numbers in over.items():
            self.look_at_devices(app_partition, numbers)

    def _look_at_unseen(self) -> None:
        """Queue some of the pushes of `begin` and `reconsider`; those that cannot be due stay packed."""
        for _ in range(min(_SLICE, len(self._unseen))):
            msgid, was_vendor_first = self._unseen.popleft()
            if (packed := self._state.started.packed(msgid)) is not None:
                device = DeviceAddress(packed.appkey, packed.partition, packed.number)
                if self._is_addressed(device):
                    self._work.append(_Work(msgid, packed.partition, BitMap([packed.number])))
            elif (push := self._state.started.get(msgid)) is not None:
                self.start(push, push.active_parts)
                if was_vendor_first or self._route(push) == ROUTE_VENDOR:
                    self._released.append(push)

    def _take_up_one(self, taking: "_Taking") -> None:
        """Queue work that had to wait until its channel may claim more."""
        for key, waiting in self._without_capacity.items():
            if taking.free(*key) > 0:
                self._work.append(waiting.popleft())
                if not waiting:
                    del self._without_capacity[key]
                return

    def _judge(self, work: _Work, now_ms: int, taking: "_Taking") -> None:
        """Claim what is due of some devices, and queue the rest again."""
        push = self._state.started.get(work.msgid)
        part = push.active_parts.get(work.partition) if push is not None else None
        if push is None or part is None or not self._state.may_send(push, now_ms) or self._route(push) == ROUTE_OWN:
            return
        appkey, channels = push.send.appkey, self._channels_of(push)
        if self._is_paused(appkey):
            self._held.setdefault(appkey, deque()).append(work)
            return
        if channels and all(taking.free(appkey, channel) <= 0 for channel in channels):
            self._without_capacity.setdefault((appkey, channels[0]), deque()).append(work)
            return
        numbers = self._addressed(push, work.partition)
        numbers &= part.pending_numbers() if work.numbers is None else work.numbers
        some = BitMap(numbers[:_SLICE])
        taking.looked += len(some)
        if rest := numbers - some:
            self._work.appendleft(work._replace(numbers=rest))
        absent = BitMap(self._absent_of(push, work.partition, some))
        is_vendor_first = self._route(push) == ROUTE_VENDOR
        for msgid, pending in part.pending_by_msgid(some if is_vendor_first else absent).items():
            if is_vendor_first:
                pending = (pending & absent) | self._unsent(push, work.partition, msgid, pending)
            pending = pending - self._claimed(push, work.partition, msgid) - taking.claimed(msgid, work.partition)
            for channel, chosen in self._choices(push, work.partition, msgid, pending):
                due = BitMap(n for n in chosen if not self._recorder.has_unwritten_final(work.partition, msgid, n))
                now = BitMap(due[: max(0, taking.free(appkey, channel))])
                if now:
                    taking.claim(Claim(push, work.partition, msgid, channel, now))
                if later := due - now:
                    self._without_capacity.setdefault((appkey, channel), deque()).append(work._replace(numbers=later))

    def _absent_of(self, push: StartedPush, partition: int, numbers: BitMap) -> Iterator[int]:
        """Return the devices that are not connected, and were not for the grace, or for an urgent push at all."""
        app_partition = push.send.appkey, partition
        connections: Collection[int] = self._presence.connections(app_partition)
        absent = self._absent.get(app_partition, {})
        is_urgent = _is_urgent(push)
        for number in numbers:
            if number not in connections:
                absence = absent.get(number)
                if absence is None or (is_urgent and absence.is_certain):
                    yield number

    # --- channels

    def _choices(self, push: StartedPush, partition: int, msgid: int, numbers: BitMap) -> Iterator[tuple[int, BitMap]]:
        """Return the channel that is to show the message on each of the devices, where there is one that may try."""
        hand_overs = self._state.hand_overs
        left = numbers - hand_overs.exhausted(push.msgid, partition, msgid)
        for channel in self._channels_of(push):
            addressed = self._channels.addressed((push.send.appkey, partition), channel)
            chosen = (left & addressed) - hand_overs.returned(push.msgid, partition, msgid, channel)
            if chosen:
                left = left - chosen
                yield channel, chosen

    def _channels_of(self, push: StartedPush) -> list[int]:
        usable = self._channels.usable(push.send.appkey)
        return [channel for channel in usable if self._channels.can_carry(channel, push)] if usable else []

    def _addressed(self, push: StartedPush, partition: int) -> BitMap:
        app_partition = push.send.appkey, partition
        return BitMap().union(*(self._channels.addressed(app_partition, each) for each in self._channels_of(push)))

    def _is_addressed(self, device: DeviceAddress) -> bool:
        return any(
            device.number in self._channels.addressed(device.app_partition, channel)
            for channel in self._channels.of_app(device.appkey)
        )

    def _route(self, push: StartedPush) -> "Route.ValueType":
        return push.send.channel.route or self._channels.route(push.send.appkey) or ROUTE_AUTO


def _is_urgent(push: StartedPush) -> bool:
    return push.send.channel.importance == IMPORTANCE_HIGH
