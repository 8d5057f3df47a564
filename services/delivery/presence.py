"""Which devices are connected, through which gateway. Volatile: gateways announce their devices again."""

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
        """Note a connection; False when the device has a later one already, which then stays."""
        place = (connected.appkey, connected.partition)
        links = self._links.setdefault(place, {})
        known = links.get(connected.number)
        if known is not None and known.connection != connected.connection:
            older = min(known, Link(stream, connected.connection), key=lambda link: link.connection)
            older.stream.close(older.connection, "replaced")
            if known.connection > connected.connection:
                return False
            self._devices.pop(known.connection, None)
        links[connected.number] = Link(stream, connected.connection)
        self._numbers.setdefault(place, BitMap()).add(connected.number)
        self._devices[connected.connection] = (*place, connected.number)
        return True

    def disconnect(self, stream: GatewayStream, connection: int) -> None:
        """Forget a connection, unless the device has another by now."""
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

    def link(self, appkey: str, partition: int, number: int) -> Link | None:
        return self._links.get((appkey, partition), {}).get(number)

    def online(self, appkey: str, partition: int) -> BitMap:
        """Numbers of the app's connected devices in the partition."""
        return self._numbers.get((appkey, partition), BitMap())
