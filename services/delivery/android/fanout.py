"""Sends what is pending to the devices that are connected: a push as it starts, a device's backlog as it comes."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import Connected, OutcomeKind
from services.delivery import decide
from services.delivery.android.gateway_stream import GatewayStream
from services.delivery.android.paced_sending import Pacing
from services.delivery.android.presence import Device, Link, Presence
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.audience_parts import BitmapPart, ListedPart
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import Push
from services.runtime.process.clock import Clock

Started = tuple[Push, Sequence[int]]
"""A push, and the partitions in which it has just started and is not over."""

WINDOW = 16
"""Messages of its backlog that a device is sent before it has acknowledged the first of them."""

_SENT = OutcomeKind.OUTCOME_KIND_SENT
_DROPPED = OutcomeKind.OUTCOME_KIND_DROPPED


@dataclass(slots=True)
class _Batch:
    """One push for some connections of one gateway."""

    connections: "array[int]" = field(default_factory=lambda: array("Q"))
    msgids: "array[int]" = field(default_factory=lambda: array("Q"))

    def send(self, stream: GatewayStream, push: Push) -> None:
        shared = len(push.ids) == 1
        stream.send(push.send.message, push.expires_ms, self.connections, self.msgids[:1] if shared else self.msgids)


class _Batches(dict[GatewayStream, _Batch]):
    """One push for the connections of all gateways."""

    def __missing__(self, stream: GatewayStream) -> _Batch:
        return self.setdefault(stream, _Batch())

    def add(self, link: Link, msgid: int) -> None:
        batch = self[link.stream]
        batch.connections.append(link.connection)
        batch.msgids.append(msgid)

    def send(self, push: Push) -> None:
        for stream, batch in self.items():
            batch.send(stream, push)


class Fanout:
    """Writes to gateways and records what it sent. Within one connection a message is sent once.

    That holds because a push starts, and a device connects, without anything else running in between. A device gets its
    messages in the order of the log; a push with a speed of its own takes its place when its turn comes.
    """

    def __init__(
        self, state: DeliveryState, presence: Presence, recorder: OutcomeRecorder, clock: Clock, shards: int
    ) -> None:
        self._state = state
        self._presence = presence
        self._recorder = recorder
        self._clock = clock
        self._pacing = Pacing(state, recorder, clock, shards, self._send_some)
        self._thirsty: set[Device] = set()

    def start(self, started: Sequence[Started]) -> None:
        """Send pushes that have just started to whoever is connected; at their speed, if they have one."""
        self._make_place(started)
        for push, partitions in started:
            if push.send.qps:
                for partition in partitions:
                    self._pacing.add(push, partition, self._connected(push, partition))
            else:
                self._send_at_once(push, partitions)

    def connected(self, stream: GatewayStream, devices: Iterable[Connected]) -> None:
        """Devices came: send each what it has still to get, pushes that several of them get as one message."""
        now_ms = self._clock.now_ms()
        came = [self._presence.connect(stream, device, now_ms) for device in devices]
        self._send_backlogs(device for device in came if device is not None)

    def left(self, stream: GatewayStream, connections: Iterable[int]) -> None:
        """Connections ended, after everything that their devices said over them was handed in."""
        for connection in connections:
            self._send_backlogs(self._presence.disconnect(stream, connection))

    def lost(self, stream: GatewayStream) -> None:
        """A gateway went away."""
        self._send_backlogs(self._presence.drop(stream))

    def release(self) -> None:
        """Let devices go on whose older connection has not ended for too long."""
        self._send_backlogs(self._presence.overdue(self._clock.now_ms()))

    def acknowledged(self, device: Device, msgid: int) -> None:
        """A device took a message in; `refill` sends it more of its backlog, if there is more."""
        link = self._presence.link(device)
        if link is not None and link.in_flight is not None:
            link.in_flight.discard(msgid)
            if len(link.in_flight) <= WINDOW // 2:
                self._thirsty.add(device)

    def refill(self) -> None:
        needs_refill, self._thirsty = self._thirsty, set()
        self._send_backlogs(device for device in needs_refill if self._is_behind(device))

    async def close(self) -> None:
        """Stop pacing; what was not sent is sent after the next start."""
        await self._pacing.close()

    def _is_behind(self, device: Device) -> bool:
        link = self._presence.link(device)
        return link is not None and link.in_flight is not None

    # --- backlogs

    def _send_backlogs(self, devices: Iterable[Device]) -> None:
        together: dict[int, tuple[Push, _Batches]] = {}
        for device in devices:
            if (link := self._presence.link(device)) is not None:
                self._send_backlog(device, link, together)
        for push, batches in sorted(together.values(), key=lambda item: item[0].order):
            batches.send(push)

    def _send_backlog(self, device: Device, link: Link, together: dict[int, tuple[Push, _Batches]]) -> None:
        """As much of it as the window takes; once it is all under way the device is ready for what comes new."""
        backlog = self._backlog(device, link)
        in_flight = link.in_flight or set()
        chosen = backlog[: WINDOW - len(in_flight)]
        now_ms = self._clock.now_ms()
        for msgid, push in chosen:
            together.setdefault(push.msgid, (push, _Batches()))[1].add(link, msgid)
            self._recorder.add(device.partition, device.appkey, msgid, device.number, _SENT, now_ms)
        if len(chosen) == len(backlog):
            self._presence.make_ready(device, link)
        else:
            link.in_flight = in_flight.union(msgid for msgid, _ in chosen)

    def _backlog(self, device: Device, link: Link) -> list[tuple[int, Push]]:
        """What the device has still to be sent, in order; pushes with a speed of their own get in line for it."""
        now_ms = self._clock.now_ms()
        in_flight = link.in_flight or ()
        backlog = []
        for msgid, push in self._state.pending(*device):
            if msgid in in_flight or push.expires_ms <= now_ms:
                continue
            if self._recorder.is_settling(device.partition, msgid, device.number):
                continue
            if not push.send.qps:
                backlog.append((msgid, push))
            elif link.in_flight is None:
                self._pacing.add(push, device.partition, BitMap([device.number]))
        return backlog

    # --- pushes

    def _make_place(self, started: Sequence[Started]) -> None:
        """Give up the oldest unicast pushes of devices whose mailbox is full."""
        devices = {
            (push.send.appkey, partition, number)
            for push, partitions in started
            for partition in partitions
            if isinstance(part := push.parts[partition], ListedPart)
            for number in part.targets
        }
        for appkey, partition, number in devices:
            is_online = number in self._presence.links(appkey, partition)
            for msgid in decide.overflow(self._state, appkey, partition, number, is_online):
                now_ms = self._clock.now_ms()
                self._recorder.settle(partition, appkey, msgid, number, _DROPPED, now_ms, "mailbox full")

    def _connected(self, push: Push, partition: int) -> BitMap:
        """Devices that are here and have not got the push."""
        online = BitMap(self._presence.links(push.send.appkey, partition))
        return push.parts[partition].pending_numbers() & online

    def _send_at_once(self, push: Push, partitions: Iterable[int]) -> None:
        """Send to all that are ready; who has a backlog under way gets it in its place after that."""
        batches = _Batches()
        for partition in partitions:
            part = push.parts[partition]
            if isinstance(part, BitmapPart):
                self._gather_many(push, partition, part.pending_numbers(), batches)
            else:
                links = self._presence.links(push.send.appkey, partition)
                ready = [number for number in part.targets if (link := links.get(number)) and _is_ready(link)]
                self._gather(push, partition, ready, batches)
        batches.send(push)

    def _gather_many(self, push: Push, partition: int, pending: BitMap, batches: _Batches) -> None:
        """A broadcast: all devices share one message id, and none of them can have acknowledged it yet."""
        links = self._presence.links(push.send.appkey, partition)
        now_ms = self._clock.now_ms()
        for stream, ready in self._presence.ready(push.send.appkey, partition).items():
            if numbers := (pending & ready).to_array():
                batch = batches[stream]
                batch.connections.extend([links[number].connection for number in numbers])
                batch.msgids = batch.msgids or array("Q", [push.msgid])
                self._recorder.add_many(partition, push.send.appkey, push.msgid, numbers, _SENT, now_ms)

    def _send_some(self, push: Push, partition: int, numbers: Sequence[int]) -> int:
        """Send to those of the devices that are connected and have not got it; returns how many messages that were."""
        batches = _Batches()
        links = self._presence.links(push.send.appkey, partition)
        here = [number for number in numbers if (link := links.get(number)) and link.waits_for is None]
        sent = self._gather(push, partition, here, batches)
        batches.send(push)
        return sent

    def _gather(self, push: Push, partition: int, numbers: Iterable[int], batches: _Batches) -> int:
        part = push.parts.get(partition)
        if part is None:
            return 0
        links = self._presence.links(push.send.appkey, partition)
        now_ms, sent = self._clock.now_ms(), 0
        for number in numbers:
            for msgid in part.pending_ids(number):
                if not self._recorder.is_settling(partition, msgid, number):
                    batches.add(links[number], msgid)
                    self._recorder.add(partition, push.send.appkey, msgid, number, _SENT, now_ms)
                    sent += 1
        return sent


def _is_ready(link: Link) -> bool:
    return link.waits_for is None and link.in_flight is None
