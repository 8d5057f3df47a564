"""Which devices are connected, through which gateway. Volatile: gateways announce their devices again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import Connected
from services.delivery.android.gateway_stream import GatewayStream
from services.domain.device_protocol import GoodbyeReason

HOLD_MS = 2_000
"""How long a device that changed gateways waits for the acknowledgements that the older one may still hand in."""

_SKEW = 10_000 << 20
"""Connection ids grow by 2^20 a millisecond: so near to each other, the order may be that of two gateways' clocks."""


class Device(NamedTuple):
    appkey: str
    partition: int
    number: int

    @property
    def place(self) -> tuple[str, int]:
        return self.appkey, self.partition


@dataclass(slots=True, eq=False)
class Link:
    """The way to one connected device.

    `waits_for`: an older connection at another gateway that has to end first. `in_flight`: while the device takes in
    a backlog, what it was sent of it and has not acknowledged. New messages go to links that have neither.
    """

    stream: GatewayStream
    connection: int
    waits_for: int | None = None
    in_flight: set[int] | None = None


class _Hold(NamedTuple):
    device: Device
    older: GatewayStream
    until_ms: int


class Presence:
    """Connections by device; a greater connection id is the later one and wins."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, int], dict[int, Link]] = {}
        self._ready: dict[tuple[str, int], dict[GatewayStream, BitMap]] = {}
        self._devices: dict[int, Device] = {}
        self._holds: dict[int, _Hold] = {}

    def connect(self, stream: GatewayStream, connected: Connected, now_ms: int) -> Device | None:
        """Note a connection; the device if it may be sent its backlog now, which makes it ready.

        None: there is nothing new in it; or the device has a later one already, which stays, and this one is closed;
        or an older one at another gateway is told to close, and `disconnect`, `drop` or `overdue` tell when it has. A
        connection that another stream announces again is new: what was under way in the one before may be lost.
        """
        device = Device(connected.appkey, connected.partition, connected.number)
        known = self.link(device)
        fresh = Link(stream, connected.connection)
        if known is not None and known.connection > fresh.connection:
            stream.close(fresh.connection, _why(known.connection - fresh.connection))
            return None
        if known is not None and (known.connection, known.stream) == (fresh.connection, stream):
            return None
        if known is not None:
            self._replace(device, known, fresh, now_ms)
        self._links.setdefault(device.place, {})[device.number] = fresh
        self._devices[fresh.connection] = device
        return device if fresh.waits_for is None else None

    def make_ready(self, device: Device, link: Link) -> None:
        """From now on the device gets new messages as they come."""
        link.in_flight = None
        self._ready.setdefault(device.place, {}).setdefault(link.stream, BitMap()).add(device.number)

    def disconnect(self, stream: GatewayStream, connection: int) -> list[Device]:
        """Forget a connection, unless another stream has it by now; devices that waited for this come back."""
        device = self._devices.get(connection)
        link = self.link(device) if device else None
        if device and link and link.stream is stream:
            self._forget(device, link)
            del self._links[device.place][device.number]
        hold = self._holds.get(connection)
        return self._released([connection]) if hold and hold.older is stream else []

    def drop(self, stream: GatewayStream) -> list[Device]:
        """A gateway went away with all its connections; devices that waited for one of them come back."""
        gone = [link.connection for links in self._links.values() for link in links.values() if link.stream is stream]
        for connection in gone:
            self.disconnect(stream, connection)
        for ready in self._ready.values():
            ready.pop(stream, None)
        return self._released([connection for connection, hold in self._holds.items() if hold.older is stream])

    def overdue(self, now_ms: int) -> list[Device]:
        """Devices that have waited for long enough."""
        return self._released([connection for connection, hold in self._holds.items() if hold.until_ms <= now_ms])

    def link(self, device: Device) -> Link | None:
        return self.links(device.appkey, device.partition).get(device.number)

    def links(self, appkey: str, partition: int) -> Mapping[int, Link]:
        """The app's connected devices in the partition, by number."""
        return self._links.get((appkey, partition), {})

    def ready(self, appkey: str, partition: int) -> Mapping[GatewayStream, BitMap]:
        """The numbers of those that get new messages as they come, by gateway."""
        return self._ready.get((appkey, partition), {})

    def _replace(self, device: Device, known: Link, fresh: Link, now_ms: int) -> None:
        self._forget(device, known)
        if known.connection < fresh.connection:
            known.stream.close(known.connection, "replaced")
        if known.waits_for is not None:
            fresh.waits_for = known.waits_for
        elif known.connection < fresh.connection and known.stream is not fresh.stream:
            fresh.waits_for = known.connection
            self._holds[known.connection] = _Hold(device, known.stream, now_ms + HOLD_MS)

    def _forget(self, device: Device, link: Link) -> None:
        self._devices.pop(link.connection, None)
        ready = self.ready(*device.place).get(link.stream)
        if ready is not None:
            ready.discard(device.number)

    def _released(self, connections: Iterable[int]) -> list[Device]:
        return [device for connection in connections if (device := self._release(connection)) is not None]

    def _release(self, connection: int) -> Device | None:
        device = self._holds.pop(connection).device
        link = self.link(device)
        if link is None or link.waits_for != connection:
            return None
        link.waits_for = None
        return device


def _why(older_by: int) -> GoodbyeReason:
    """Of two connections the one with the smaller id goes; it may come again if it was perhaps the newer one."""
    return "replaced" if older_by > _SKEW else "draining"
