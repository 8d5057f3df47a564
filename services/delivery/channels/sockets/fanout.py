"""Sends pending messages to connected devices: each push as it starts, each backlog in windows."""

import asyncio
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import Connected, OutcomeKind
from services.delivery import decide
from services.delivery.channels import Capabilities
from services.delivery.channels.sockets.gateway_stream import GatewayStream
from services.delivery.channels.sockets.paced_sender import PacedSender
from services.delivery.channels.sockets.presence import AnnouncedConnection, Presence
from services.delivery.due_hand_overs import DueHandOvers
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.audience_parts import BitmapAudience, DeviceAddress, ListedAudience
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.apps import AppDirectory
from services.domain.recorded_reasons import FixedReason
from services.process.clock import Clock, wait_for_first

# The windows of backlogs: which messages of a device's backlog are in flight, and when the next ones may be sent.

BACKLOG_WINDOW = 16
"""Backlog messages in flight to a device, at most."""

_LOOKED_AT = 250
"""Devices at which `look_for_ended` looks in one call, at most: it takes some milliseconds."""


class BacklogWindows:
    """The messages in flight to the devices that are being sent their backlogs.

    A message leaves its device's window when the device has acknowledged it. A message that ended while its app was
    paused may have been dropped by the gateway or its stream; it leaves the window when `look_for_ended` examines the
    device.
    """

    def __init__(self, state: DeliveryState, presence: Presence, clock: Clock) -> None:
        self._state = state
        self._presence = presence
        self._clock = clock
        self._half_empty: dict[DeviceAddress, None] = {}

    def acknowledge(self, device: DeviceAddress, msgid: int) -> None:
        """Note that the device has acknowledged a message."""
        if (in_flight := self._in_flight(device)) is not None:
            in_flight.discard(msgid)
            self._note_half_empty(device, in_flight)

    def look_for_ended(self) -> None:
        """Look at some of the devices, in turns, for messages in flight that have expired, ended or been cancelled."""
        for device, in_flight in self._presence.next_in_flight(_LOOKED_AT):
            in_flight.difference_update([msgid for msgid in in_flight if not self._may_be_acknowledged(msgid)])
            self._note_half_empty(device, in_flight)

    def take_half_empty(self) -> Sequence[DeviceAddress]:
        """Return the devices that may be sent the next messages of their backlogs, each once."""
        found, self._half_empty = self._half_empty, {}
        return [device for device in found if self._in_flight(device) is not None]

    def _note_half_empty(self, device: DeviceAddress, in_flight: set[int]) -> None:
        if len(in_flight) <= BACKLOG_WINDOW // 2:
            self._half_empty[device] = None

    def _in_flight(self, device: DeviceAddress) -> set[int] | None:
        """Return the messages in flight; None: the device is not connected, or no more of its backlog is left."""
        connection = self._presence.connection_of(device)
        return connection.in_flight if connection is not None else None

    def _may_be_acknowledged(self, msgid: int) -> bool:
        push = self._state.push_of(msgid)
        return push is not None and self._state.may_send(push, self._clock.now_ms())


# The connections that one push goes to, by gateway.


@dataclass(slots=True)
class GatewayBatch:
    """One push for some connections of one gateway."""

    connections: "array[int]" = field(default_factory=lambda: array("Q"))
    msgids: "array[int]" = field(default_factory=lambda: array("Q"))

    def send(self, stream: GatewayStream, push: StartedPush) -> None:
        shared = len(push.msgids) == 1
        stream.send(push, self.connections, self.msgids[:1] if shared else self.msgids)


class GatewayBatches(dict[GatewayStream, GatewayBatch]):
    """One push for connections of all gateways."""

    def __missing__(self, stream: GatewayStream) -> GatewayBatch:
        return self.setdefault(stream, GatewayBatch())

    def add(self, connection: AnnouncedConnection, msgid: int) -> None:
        batch = self[connection.stream]
        batch.connections.append(connection.id)
        batch.msgids.append(msgid)

    def send(self, push: StartedPush) -> None:
        for stream, batch in self.items():
            batch.send(stream, push)


# The mailboxes of devices: the oldest unicast messages are dropped beyond their cap.


def drop_overflow(
    state: DeliveryState,
    presence: Presence,
    recorder: OutcomeRecorder,
    push: StartedPush,
    partitions: Iterable[int],
    now_ms: int,
) -> None:
    """Drop the oldest unicast pushes from the mailboxes that a push has filled beyond their cap at its start."""
    devices = {
        DeviceAddress(push.send.appkey, partition, number)
        for partition in partitions
        if isinstance(part := push.active_parts[partition], ListedAudience)
        for number in part.targets
    }
    for device in devices:
        is_connected = device.number in presence.connections(device.app_partition)
        for msgid in decide.overflow(state, device, is_connected):
            recorder.record_final(
                *(device.partition, device.appkey, msgid, device.number),
                *(OutcomeKind.OUTCOME_KIND_DROPPED, now_ms, FixedReason.MAILBOX_FULL),
            )


_RESUMED_AT_ONCE = 1000
_TARGET_COST = 60
_CONNECTIONS_PER_UNIT = 3
_SENT = OutcomeKind.OUTCOME_KIND_SENT


_BacklogBatches = dict[int, tuple[StartedPush, GatewayBatches]]
"""Pushes and their batches by msgid; a push in several devices' backlogs is sent as one message."""


class Fanout:
    """Writes messages to gateway streams and records them as sent, each message once per connection.

    That holds because `start` and `connect` run without any other task in between. A device gets its messages in the
    order of the log, except pushes with a speed (`qps`), which are sent when the rate limiter allows it.

    While an app is paused, or has filled its share of a gateway's stream, its pushes and the backlogs of its devices
    wait for `resume`. `has_new_capacity` is set when there may be capacity again.

    It is the DeliveryChannel of Carillon's own connections. As a service it resumes whenever a pause has changed or
    there is new capacity, and stops the paced sending at its end; devices are sent the rest after the next start.
    """

    name = "delivery sockets"
    capabilities = Capabilities(drops_repeats=True, starts_whole=False)

    def __init__(
        self,
        state: DeliveryState,
        presence: Presence,
        recorder: OutcomeRecorder,
        apps: AppDirectory,
        clock: Clock,
        shards: int,
        hand_overs: DueHandOvers,
    ) -> None:
        self._state = state
        self._apps = apps
        self._presence = presence
        self._recorder = recorder
        self._hand_overs = hand_overs
        self._clock = clock
        self._paced_sender = PacedSender(
            state, recorder, apps, clock, shards, self._has_capacity, self._send_to_numbers
        )
        self._held_starts: dict[str, deque[tuple[StartedPush, Sequence[int]]]] = {}
        self._windows = BacklogWindows(state, presence, clock)
        self._streams: dict[GatewayStream, None] = {}
        self.has_new_capacity = asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            while True:
                change = self._apps.pauses_changed
                self.has_new_capacity.clear()
                await self.resume()
                await wait_for_first(self._clock, None, change, self.has_new_capacity)
        finally:
            await self._paced_sender.close()

    def start(self, push: StartedPush, partitions: Sequence[int]) -> None:
        """Send a push that has just started to the connected devices, or keep it for `resume`."""
        drop_overflow(self._state, self._presence, self._recorder, push, partitions, self._clock.now_ms())
        self._hand_overs.start(push, partitions)
        self.send_again(push, partitions)

    def send_again(self, push: StartedPush, partitions: Sequence[int]) -> None:
        """Send a push to the devices that are ready and for which it is pending and not withheld any more.

        A device may have been sent the push over the same connection already: the gateway then drops the repetition.
        """
        if self._is_held(push.send.appkey) or not self._has_capacity(push.send.appkey):
            self._held_starts.setdefault(push.send.appkey, deque()).append((push, partitions))
        else:
            self._send_started(push, partitions)

    def starting_cost(self, appkey: str, partition: int, listed: int | None) -> float:
        if listed is not None:
            return _TARGET_COST * listed
        return len(self._presence.connections((appkey, partition))) / _CONNECTIONS_PER_UNIT

    async def resume(self) -> None:
        """Send what waited for the resume of its app, or for capacity: messages to gateways, started pushes, backlogs.

        While pushes of an app wait, later ones wait behind them, and so do the backlogs of devices that connect. So no
        device is sent a push both as it starts and with its backlog.
        """
        for stream in self._streams:
            stream.release(self._may_send)
        for appkey in list(self._held_starts):
            await self._resume_starts(appkey)
        held = self._presence.held(self._is_held)
        for first in range(0, len(held), _RESUMED_AT_ONCE):
            await self._recorder.wait_capacity()
            self._send_backlogs(filter(self._presence.is_held, held[first : first + _RESUMED_AT_ONCE]))
            await asyncio.sleep(0)

    def connect(self, stream: GatewayStream, devices: Iterable[Connected]) -> None:
        """Add connections and send the devices their backlogs."""
        self._streams[stream] = None
        now_ms = self._clock.now_ms()
        connected = []
        for device in devices:
            self._hand_overs.came(DeviceAddress(device.appkey, device.partition, device.number))
            connected.append(self._presence.connect(stream, device, now_ms))
        self._send_backlogs(device for device in connected if device is not None)

    def disconnect(self, stream: GatewayStream, connection_ids: Iterable[int]) -> None:
        """Remove connections that have ended, after all reports that came over them were recorded."""
        for connection_id in connection_ids:
            device = self._presence.device_over(stream, connection_id)
            self._send_backlogs(self._presence.disconnect(stream, connection_id))
            if device is not None:
                self._hand_overs.left(device, self._clock.now_ms())

    def remove_gateway(self, stream: GatewayStream) -> None:
        """Remove a gateway whose stream has ended, with its connections."""
        self._streams.pop(stream, None)
        self.has_new_capacity.set()
        for device in self._presence.devices_over(stream):
            self._hand_overs.left(device, self._clock.now_ms(), is_certain=False)
        self._send_backlogs(self._presence.drop(stream))

    def send_returned(self, push: StartedPush, partition: int, number: int) -> None:
        """Send a message that a channel has returned, if the device is ready for new pushes; otherwise its backlog has
        the message.
        """
        device = DeviceAddress(push.send.appkey, partition, number)
        connection = self._presence.connection_of(device)
        if connection is None or not connection.is_ready:
            return
        if self._is_held(device.appkey) or not connection.stream.has_capacity(device.appkey):
            self._presence.hold(device)
        elif self._may_send(push):
            self._send_to_numbers(push, partition, [number])

    def end_overdue_takeovers(self) -> None:
        """Send backlogs to devices that have waited for the end of an older connection until the deadline."""
        self._send_backlogs(self._presence.pop_overdue(self._clock.now_ms()))

    def acknowledge(self, device: DeviceAddress, msgid: int) -> None:
        """Note that the device has acknowledged a message; `refill` then continues its backlog."""
        self._windows.acknowledge(device, msgid)

    def refill(self) -> None:
        """Send the next backlog messages to devices that have acknowledged half of a window."""
        self._send_backlogs(self._windows.take_half_empty())

    def refill_after_ended(self) -> None:
        """Send the next backlog messages to devices in whose window half of the messages or more have ended."""
        self._windows.look_for_ended()
        self.refill()

    # --- paused apps, and apps without capacity

    def _is_held(self, appkey: str) -> bool:
        """Whether nothing of the app may be sent: it is paused, or pushes that waited come first."""
        return self._apps.is_paused(appkey) or appkey in self._held_starts

    def _has_capacity(self, appkey: str) -> bool:
        return all(stream.has_capacity(appkey) for stream in self._streams)

    def _may_send(self, push: StartedPush) -> bool:
        return self._state.may_send(push, self._clock.now_ms())

    async def _resume_starts(self, appkey: str) -> None:
        """Send the app's pushes that waited, in order, until it is paused or is without capacity again."""
        starts = self._held_starts[appkey]
        while starts:
            await self._recorder.wait_capacity()
            if self._apps.is_paused(appkey) or not self._has_capacity(appkey):
                return
            push, partitions = starts.popleft()
            if self._may_send(push):
                self._send_started(push, [partition for partition in partitions if partition in push.active_parts])
        del self._held_starts[appkey]

    # --- backlogs

    def _send_backlogs(self, devices: Iterable[DeviceAddress]) -> None:
        batches: _BacklogBatches = {}
        for device in devices:
            if (connection := self._presence.connection_of(device)) is not None:
                if self._is_held(device.appkey) or not connection.stream.has_capacity(device.appkey):
                    self._presence.hold(device)
                else:
                    self._presence.release(device)
                    self._send_backlog(device, connection, batches)
        for push, by_gateway in sorted(batches.values(), key=lambda item: item[0].offset):
            by_gateway.send(push)

    def _send_backlog(self, device: DeviceAddress, connection: AnnouncedConnection, batches: _BacklogBatches) -> None:
        """Fill the window; once all of the backlog is in flight the device is ready for new pushes."""
        backlog = self._backlog(device, connection)
        chosen = backlog[: BACKLOG_WINDOW - len(connection.in_flight or ())]
        now_ms = self._clock.now_ms()
        for msgid, push in chosen:
            batches.setdefault(push.msgid, (push, GatewayBatches()))[1].add(connection, msgid)
            self._recorder.record(device.partition, device.appkey, msgid, device.number, _SENT, now_ms)
        if len(chosen) == len(backlog):
            self._presence.make_ready(device, connection)
        else:
            self._presence.add_in_flight(device, connection, (msgid for msgid, _ in chosen))

    def _backlog(self, device: DeviceAddress, connection: AnnouncedConnection) -> list[tuple[int, StartedPush]]:
        """Return the messages still to be sent, in order; hand pushes with a speed to the paced sender."""
        now_ms = self._clock.now_ms()
        in_flight = connection.in_flight or ()
        backlog = []
        for msgid, push in self._state.pending(device):
            if msgid in in_flight or push.expires_ms <= now_ms:
                continue
            if self._recorder.has_unwritten_final(device.partition, msgid, device.number):
                continue
            if device.number in self._hand_overs.withheld(push, device.partition, msgid):
                continue
            if not push.send.qps:
                backlog.append((msgid, push))
            elif connection.in_flight is None:
                self._paced_sender.add(push, device.partition, BitMap([device.number]))
        return backlog

    # --- pushes

    def _send_started(self, push: StartedPush, partitions: Iterable[int]) -> None:
        """Send a push to the connected devices, one with a speed at its speed."""
        if not push.send.qps:
            self._send_at_once(push, partitions)
            return
        for partition in partitions:
            self._paced_sender.add(push, partition, self._pending_and_connected(push, partition))

    def _pending_and_connected(self, push: StartedPush, partition: int) -> BitMap:
        connected = BitMap(self._presence.connections((push.send.appkey, partition)))
        return push.active_parts[partition].pending_numbers() & connected

    def _send_at_once(self, push: StartedPush, partitions: Iterable[int]) -> None:
        """Send to all devices that are ready; those with a backlog get the push after it."""
        batches = GatewayBatches()
        for partition in partitions:
            part = push.active_parts[partition]
            if isinstance(part, BitmapAudience):
                pending = part.pending_numbers() - self._hand_overs.withheld(push, partition, push.msgid)
                self._gather_broadcast(push, partition, pending, batches)
            else:
                connections = self._presence.connections((push.send.appkey, partition))
                ready = [number for number in part.targets if (found := connections.get(number)) and found.is_ready]
                self._gather(push, partition, ready, batches)
        batches.send(push)

    def _gather_broadcast(self, push: StartedPush, partition: int, pending: BitMap, batches: GatewayBatches) -> None:
        """Gather the ready devices; all share one message id, and none can have acknowledged it yet."""
        app_partition = (push.send.appkey, partition)
        connections = self._presence.connections(app_partition)
        now_ms = self._clock.now_ms()
        for stream, ready in self._presence.ready(app_partition).items():
            if numbers := (pending & ready).to_array():
                batch = batches[stream]
                batch.connections.extend([connections[number].id for number in numbers])
                batch.msgids = batch.msgids or array("Q", [push.msgid])
                self._recorder.record_many(partition, push.send.appkey, push.msgid, numbers, _SENT, now_ms)

    def _send_to_numbers(self, push: StartedPush, partition: int, numbers: Sequence[int]) -> int:
        """Send the push to the connected devices that have it pending; return the number of messages."""
        batches = GatewayBatches()
        connections = self._presence.connections((push.send.appkey, partition))
        connected = [number for number in numbers if (found := connections.get(number)) and not found.is_waiting]
        sent = self._gather(push, partition, connected, batches)
        batches.send(push)
        return sent

    def _gather(self, push: StartedPush, partition: int, numbers: Iterable[int], batches: GatewayBatches) -> int:
        part = push.active_parts.get(partition)
        if part is None:
            return 0
        is_withheld = self._hand_overs.withholds(push, partition)
        withheld: dict[int, BitMap] = {}
        connections = self._presence.connections((push.send.appkey, partition))
        now_ms, sent = self._clock.now_ms(), 0
        for number in numbers:
            for msgid in part.pending_msgids(number):
                if is_withheld and msgid not in withheld:
                    withheld[msgid] = self._hand_overs.withheld(push, partition, msgid)
                is_over = self._recorder.has_unwritten_final(partition, msgid, number)
                if not is_over and number not in withheld.get(msgid, ()):
                    batches.add(connections[number], msgid)
                    self._recorder.record(partition, push.send.appkey, msgid, number, _SENT, now_ms)
                    sent += 1
        return sent
