"""Which devices are connected, through which gateway. Volatile: gateways announce their devices again."""

from collections.abc import Mapping
from typing import NamedTuple

from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import Connected
from services.delivery.stream import GatewayStream


class Link(NamedTuple):
    """The way to one connected device."""

    stream: GatewayStream
    connection: int


class Presence:
    """Connections by device; a greater connection id is the later one and wins."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, int], dict[int, Link]] = {}
        self._numbers: dict[tuple[str, int], BitMap] = {}
        self._devices: dict[int, tuple[str, int, int]] = {}

    def connect(self, stream: GatewayStream, connected: Connected) -> bool:
        """Note a connection; False when there is nothing new in it.

        The device may have a later one already, which then stays; whichever is older is closed. A connection that
        another stream announces again is new: what was under way in the stream before may be lost.
        """
        place = (connected.appkey, connected.partition)
        fresh = Link(stream, connected.connection)
        known = self._links.setdefault(place, {}).get(connected.number)
        if known == fresh:
            return False
        if known is not None and known.connection > fresh.connection:
            stream.close(fresh.connection, "replaced")
            return False
        if known is not None and known.connection < fresh.connection:
            known.stream.close(known.connection, "replaced")
            del self._devices[known.connection]
        self._links[place][connected.number] = fresh
        self._numbers.setdefault(place, BitMap()).add(connected.number)
        self._devices[fresh.connection] = (*place, connected.number)
        return True

    def disconnect(self, stream: GatewayStream, connection: int) -> None:
        """Forget a connection, unless the device has another, or another way to it, by now."""
        device = self._devices.get(connection)
        if device is None:
            return
        appkey, partition, number = device
        if self._links[appkey, partition][number].stream is stream:
            del self._devices[connection]
            del self._links[appkey, partition][number]
            self._numbers[appkey, partition].discard(number)

    def drop(self, stream: GatewayStream) -> None:
        """A gateway went away with all its connections."""
        gone = [link.connection for links in self._links.values() for link in links.values() if link.stream is stream]
        for connection in gone:
            self.disconnect(stream, connection)

    def links(self, appkey: str, partition: int) -> Mapping[int, Link]:
        """The app's connected devices in the partition, by number."""
        return self._links.get((appkey, partition), {})

    def online(self, appkey: str, partition: int) -> BitMap:
        """Their numbers."""
        return self._numbers.get((appkey, partition), BitMap())
