"""What waits to go to one gateway."""

import asyncio
from array import array

from protos.delivery.v1.delivery_pb2 import AttachResponse, Close, Send
from protos.push.v1.push_pb2 import Message
from services.runtime.errors import BusyError

MAX_WAITING = 2_000_000
"""Messages for one gateway in memory at most; a gateway that slow is cut off and gets the rest when it is back."""

_BATCH = 50_000


class GatewayStream:
    """An outbox: messages and closes for the connections of one gateway process, in order."""

    def __init__(self) -> None:
        self._outbox: list[tuple[int, Send | Close]] = []
        self._waiting = 0
        self._news = asyncio.Event()

    def send(self, message: Message, expires_ms: int, connections: "array[int]", msgids: "array[int]") -> None:
        """Queue one message for connections; `msgids` holds one id for all of them, or one for each."""
        self._waiting += len(connections)
        send = Send(message=message, expires_ms=expires_ms, connections=connections.tobytes(), msgids=msgids.tobytes())
        self._outbox.append((len(connections), send))
        self._news.set()

    def close(self, connection: int, reason: str) -> None:
        self._outbox.append((1, Close(connection=connection, reason=reason)))
        self._news.set()

    async def take(self) -> AttachResponse:
        """The next batch; BusyError when the gateway is too far behind."""
        while not self._outbox:
            self._news.clear()
            await self._news.wait()
        if self._waiting > MAX_WAITING:
            raise BusyError("the gateway does not keep up; attach again")
        response = AttachResponse()
        size = taken = 0
        while taken < len(self._outbox) and size < _BATCH:
            count, item = self._outbox[taken]
            if isinstance(item, Send):
                response.sends.append(item)
                self._waiting -= count
            else:
                response.closes.append(item)
            size += count
            taken += 1
        del self._outbox[:taken]
        return response
