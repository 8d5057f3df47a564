"""The queue of messages and closes for one gateway."""

import asyncio
from array import array
from collections import deque
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import AttachResponse
from protos.push.v1.push_pb2 import Message
from services.runtime.errors import BusyError

MAX_QUEUED_BYTES = 256 * 1024 * 1024
"""Byte budget of one gateway's queue. Beyond it the stream fails; after a new Attach the gateway gets the rest."""

_BATCH_BYTES = 1024 * 1024
_MAX_CONNECTIONS = 20_000
_OVERHEAD_BYTES = 64


class _QueuedSend(NamedTuple):
    message: Message
    expires_ms: int
    connections: "array[int]"
    msgids: "array[int]"
    size: int


class _QueuedClose(NamedTuple):
    connection: int
    reason: str
    size: int = _OVERHEAD_BYTES


class GatewayStream:
    """The response side of one Attach call: an ordered queue for the connections of one gateway process."""

    def __init__(self) -> None:
        self._queue: deque[_QueuedSend | _QueuedClose] = deque()
        self._queued_bytes = 0
        self._recorded = 0
        self._is_ended = False
        self._is_over_budget = False
        self._has_new = asyncio.Event()

    def send(self, message: Message, expires_ms: int, connections: "array[int]", msgids: "array[int]") -> None:
        """Queue one message for connections; `msgids` holds one id for all of them, or one for each."""
        for at in range(0, len(connections), _MAX_CONNECTIONS):
            some = connections[at : at + _MAX_CONNECTIONS]
            ids = msgids if len(msgids) == 1 else msgids[at : at + _MAX_CONNECTIONS]
            size = _OVERHEAD_BYTES + message.ByteSize() + 8 * (len(some) + len(ids))
            self._put(_QueuedSend(message, expires_ms, some, ids, size))

    def close(self, connection: int, reason: str) -> None:
        """Queue the close of a connection; `reason` is the goodbye's."""
        self._put(_QueuedClose(connection, reason))

    def confirm(self, sequence: int) -> None:
        """Confirm to the gateway that its reports up to this batch are in the log."""
        self._recorded = sequence
        self._has_new.set()

    def end(self) -> None:
        """Make `next_response` return None from now on."""
        self._is_ended = True
        self._has_new.set()

    async def next_response(self) -> AttachResponse | None:
        """Wait for the next batch; None at the end. BusyError: the queue has exceeded its budget."""
        while not (self._queue or self._recorded or self._is_over_budget or self._is_ended):
            self._has_new.clear()
            await self._has_new.wait()
        if self._is_ended:
            return None
        if self._is_over_budget:
            raise BusyError("the gateway does not keep up; attach again")
        return self._batch()

    def _put(self, item: _QueuedSend | _QueuedClose) -> None:
        self._queued_bytes += item.size
        if self._queued_bytes > MAX_QUEUED_BYTES and not self._is_over_budget:
            self._is_over_budget = True
            self._queue.clear()
        if not self._is_over_budget:
            self._queue.append(item)
        self._has_new.set()

    def _batch(self) -> AttachResponse:
        response = AttachResponse(recorded=self._recorded)
        self._recorded = 0
        size = 0
        while self._queue and size < _BATCH_BYTES:
            item = self._queue.popleft()
            size += item.size
            if isinstance(item, _QueuedSend):
                response.sends.add(
                    message=item.message,
                    expires_ms=item.expires_ms,
                    connections=item.connections.tobytes(),
                    msgids=item.msgids.tobytes(),
                )
            else:
                response.closes.add(connection=item.connection, reason=item.reason)
        self._queued_bytes -= size
        return response
