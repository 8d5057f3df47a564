"""What waits to go to one gateway."""

import asyncio
from array import array
from collections import deque
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import AttachResponse
from protos.push.v1.push_pb2 import Message
from services.runtime.errors import BusyError

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""What may wait for one gateway; a gateway that slow is cut off and gets the rest when it is back."""

_BATCH_BYTES = 1024 * 1024
_MAX_CONNECTIONS = 20_000
_OVERHEAD_BYTES = 64


class _Send(NamedTuple):
    message: Message
    expires_ms: int
    connections: "array[int]"
    msgids: "array[int]"
    size: int


class _Close(NamedTuple):
    connection: int
    reason: str
    size: int = _OVERHEAD_BYTES


class GatewayStream:
    """An outbox: messages and closes for the connections of one gateway process, in order."""

    def __init__(self) -> None:
        self._outbox: deque[_Send | _Close] = deque()
        self._waiting_bytes = 0
        self._recorded = 0
        self._ended = False
        self._behind = False
        self._news = asyncio.Event()

    def send(self, message: Message, expires_ms: int, connections: "array[int]", msgids: "array[int]") -> None:
        """Queue one message for connections; `msgids` holds one id for all of them, or one for each."""
        for at in range(0, len(connections), _MAX_CONNECTIONS):
            some = connections[at : at + _MAX_CONNECTIONS]
            ids = msgids if len(msgids) == 1 else msgids[at : at + _MAX_CONNECTIONS]
            size = _OVERHEAD_BYTES + message.ByteSize() + 8 * (len(some) + len(ids))
            self._put(_Send(message, expires_ms, some, ids, size))

    def close(self, connection: int, reason: str) -> None:
        """Queue a goodbye."""
        self._put(_Close(connection, reason))

    def confirm(self, sequence: int) -> None:
        """Tell the gateway that its reports up to this batch are in the log."""
        self._recorded = sequence
        self._news.set()

    def end(self) -> None:
        """Let `take` return None from now on."""
        self._ended = True
        self._news.set()

    async def take(self) -> AttachResponse | None:
        """The next batch, None at the end; BusyError when the gateway is too far behind."""
        while not (self._outbox or self._recorded or self._behind or self._ended):
            self._news.clear()
            await self._news.wait()
        if self._ended:
            return None
        if self._behind:
            raise BusyError("the gateway does not keep up; attach again")
        return self._batch()

    def _put(self, item: _Send | _Close) -> None:
        self._waiting_bytes += item.size
        if self._waiting_bytes > MAX_WAITING_BYTES and not self._behind:
            self._behind = True
            self._outbox.clear()
        if not self._behind:
            self._outbox.append(item)
        self._news.set()

    def _batch(self) -> AttachResponse:
        response = AttachResponse(recorded=self._recorded)
        self._recorded = 0
        size = 0
        while self._outbox and size < _BATCH_BYTES:
            item = self._outbox.popleft()
            size += item.size
            if isinstance(item, _Send):
                response.sends.add(
                    message=item.message,
                    expires_ms=item.expires_ms,
                    connections=item.connections.tobytes(),
                    msgids=item.msgids.tobytes(),
                )
            else:
                response.closes.add(connection=item.connection, reason=item.reason)
        self._waiting_bytes -= size
        return response
