"""The connections that one push goes to, by gateway."""

from array import array
from dataclasses import dataclass, field

from services.delivery.android.gateway_stream import GatewayStream
from services.delivery.android.presence import AnnouncedConnection
from services.delivery.state.pushes import StartedPush


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
