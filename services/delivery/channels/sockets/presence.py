"""Presence: the connected devices, and the gateway of each. It is not stored: gateways announce connections again."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import Connected
from services.delivery.channels.sockets.gateway_stream import GatewayStream
from services.delivery.state.audience_parts import AppPartition, DeviceAddress
from services.domain.device_protocol.answers import GoodbyeReason

TAKEOVER_MS = 2_000
"""Time for which a device that changed gateways waits for acknowledgements from its older gateway."""

_CLOCK_SKEW_IDS = 10_000 << 20
"""Connection ids grow by 2^20 a millisecond; within this distance gateways' clocks may have swapped the order."""


@dataclass(slots=True, eq=False)
class AnnouncedConnection:
    """A device's connection that a gateway has announced.

    `is_waiting`: an older connection on another gateway has to end first. `in_flight`: while a backlog is being sent,
    the message ids sent of it and not acknowledged. `is_ready`: it gets new pushes as they start.
    """

    stream: GatewayStream
    id: int
    is_waiting: bool = False
    in_flight: set[int] | None = None
    is_ready: bool = False


class _Takeover(NamedTuple):
    """A device that waits, until `deadline_ms` at most, for the end of its older connection on another gateway."""

    device: DeviceAddress
    older: GatewayStream
    deadline_ms: int


class Presence:
    """Connections by device; of two connections of a device the one with the greater id is the later one and stays."""

    def __init__(self) -> None:
        self._connections: dict[AppPartition, dict[int, AnnouncedConnection]] = {}
        self._ready: dict[AppPartition, dict[GatewayStream, BitMap]] = {}
        self._held: dict[AppPartition, BitMap] = {}
        self._in_flight: dict[DeviceAddress, set[int]] = {}
        self._devices: dict[int, DeviceAddress] = {}
        self._takeovers: dict[int, _Takeover] = {}
        self._waiting: set[DeviceAddress] = set()

    def connect(self, stream: GatewayStream, connected: Connected, now_ms: int) -> DeviceAddress | None:
        """Add a connection; return the device if it may be sent its backlog now.

        None: the connection is known; or the device has a later one, and this one is closed; or its older connection
        on another gateway is being closed, and `disconnect`, `drop` or `pop_overdue` returns the device later.
        A connection announced again by another stream is new: messages in flight on the older stream may be lost.
        """
        device = DeviceAddress(connected.appkey, connected.partition, connected.number)
        current = self.connection_of(device)
        new = AnnouncedConnection(stream, connected.connection)
        if current is not None and current.id > new.id:
            stream.close(new.id, _goodbye_reason(current.id - new.id))
            return None
        if current is not None and (current.id, current.stream) == (new.id, stream):
            return None
        if current is not None:
            may_be_older = connected.open_before and current.stream is not stream
            self._replace(device, current, new, now_ms, may_be_older=may_be_older)
        new.is_waiting = device in self._waiting
        self._connections.setdefault(device.app_partition, {})[device.number] = new
        self._devices[new.id] = device
        return None if new.is_waiting else device

    def make_ready(self, device: DeviceAddress, connection: AnnouncedConnection) -> None:
        """Let the device have new pushes as they start: all of its backlog is sent."""
        self._end_backlog(device, connection)
        connection.is_ready = True
        ready = self._ready.setdefault(device.app_partition, {})
        ready.setdefault(connection.stream, BitMap()).add(device.number)

    def add_in_flight(self, device: DeviceAddress, connection: AnnouncedConnection, msgids: Iterable[int]) -> None:
        """Note that these messages of the device's backlog are in flight, and that more of it is left."""
        connection.in_flight = self._in_flight[device] = (connection.in_flight or set()).union(msgids)

    def next_in_flight(self, count: int) -> list[tuple[DeviceAddress, set[int]]]:
        """Return `count` devices that are being sent their backlogs, in turns, with the messages in flight."""
        found = list(islice(self._in_flight.items(), count))
        for device, _ in found:
            self._in_flight[device] = self._in_flight.pop(device)
        return found

    def hold(self, device: DeviceAddress) -> None:
        """Note that a connected device's backlog waits until its app is resumed or has capacity."""
        self._held.setdefault(device.app_partition, BitMap()).add(device.number)

    def release(self, device: DeviceAddress) -> None:
        """Note that a device's backlog does not wait any more."""
        held = self._held.get(device.app_partition)
        if held is not None:
            held.discard(device.number)
            if not held:
                del self._held[device.app_partition]

    def is_held(self, device: DeviceAddress) -> bool:
        return device.number in self._held.get(device.app_partition, ())

    def disconnect(self, stream: GatewayStream, connection_id: int) -> list[DeviceAddress]:
        """Remove a connection unless another stream has announced it; return the device that waited for its end."""
        if (device := self.device_over(stream, connection_id)) is not None:
            self._forget(device, self._connections[device.app_partition][device.number])
            del self._connections[device.app_partition][device.number]
        takeover = self._takeovers.get(connection_id)
        return self._end_takeovers([connection_id]) if takeover and takeover.older is stream else []

    def drop(self, stream: GatewayStream) -> list[DeviceAddress]:
        """Remove a gateway with all its connections; return the devices that waited for the end of one of them."""
        for device in self.devices_over(stream):
            self.disconnect(stream, self._connections[device.app_partition][device.number].id)
        for ready in self._ready.values():
            ready.pop(stream, None)
        return self._end_takeovers([older_id for older_id, each in self._takeovers.items() if each.older is stream])

    def pop_overdue(self, now_ms: int) -> list[DeviceAddress]:
        """End the waits whose deadline has passed, and return their devices."""
        return self._end_takeovers(
            [older_id for older_id, each in self._takeovers.items() if each.deadline_ms <= now_ms]
        )

    def held(self, is_paused: Callable[[str], bool]) -> list[DeviceAddress]:
        """Return the devices whose backlogs are held and may be sent now, because their apps are not paused."""
        return [
            DeviceAddress(appkey, partition, number)
            for (appkey, partition), held in self._held.items()
            if not is_paused(appkey)
            for number in held
        ]

    def device_over(self, stream: GatewayStream, connection_id: int) -> DeviceAddress | None:
        """Return the device whose connection this is, unless another stream has announced the connection."""
        device = self._devices.get(connection_id)
        connection = self.connection_of(device) if device is not None else None
        return device if connection is not None and connection.stream is stream else None

    def devices_over(self, stream: GatewayStream) -> list[DeviceAddress]:
        """Return the devices that are connected to the gateway."""
        return [
            DeviceAddress(appkey, partition, number)
            for (appkey, partition), connections in self._connections.items()
            for number, connection in connections.items()
            if connection.stream is stream
        ]

    def connection_of(self, device: DeviceAddress) -> AnnouncedConnection | None:
        return self.connections(device.app_partition).get(device.number)

    def connections(self, app_partition: AppPartition) -> Mapping[int, AnnouncedConnection]:
        """Return the connections by device number."""
        return self._connections.get(app_partition, {})

    def ready(self, app_partition: AppPartition) -> Mapping[GatewayStream, BitMap]:
        """Return the numbers of the devices that get new pushes as they start, by gateway."""
        return self._ready.get(app_partition, {})

    def _replace(
        self,
        device: DeviceAddress,
        current: AnnouncedConnection,
        new: AnnouncedConnection,
        now_ms: int,
        *,
        may_be_older: bool,
    ) -> None:
        """Close the current connection for the new one; `may_be_older`: it may be older in spite of its greater id."""
        self._forget(device, current)
        if current.id < new.id:
            reason = _goodbye_reason(new.id - current.id) if may_be_older else "replaced"
            current.stream.close(current.id, reason)
        if device not in self._waiting and current.id < new.id and current.stream is not new.stream:
            self._waiting.add(device)
            self._takeovers[current.id] = _Takeover(device, current.stream, now_ms + TAKEOVER_MS)

    def _forget(self, device: DeviceAddress, connection: AnnouncedConnection) -> None:
        self._devices.pop(connection.id, None)
        self.release(device)
        self._end_backlog(device, connection)
        ready = self.ready(device.app_partition).get(connection.stream)
        if ready is not None:
            ready.discard(device.number)

    def _end_backlog(self, device: DeviceAddress, connection: AnnouncedConnection) -> None:
        if connection.in_flight is not None:
            connection.in_flight = None
            del self._in_flight[device]

    def _end_takeovers(self, older_ids: Iterable[int]) -> list[DeviceAddress]:
        return [device for older_id in older_ids if (device := self._end_takeover(older_id)) is not None]

    def _end_takeover(self, older_id: int) -> DeviceAddress | None:
        device = self._takeovers.pop(older_id).device
        self._waiting.remove(device)
        connection = self.connection_of(device)
        if connection is None:
            return None
        connection.is_waiting = False
        return device


def _goodbye_reason(older_by: int) -> GoodbyeReason:
    """Return why to close the connection of smaller id; "draining" lets the device reconnect if it may be the newer
    one.
    """
    return "replaced" if older_by > _CLOCK_SKEW_IDS else "draining"
