"""The queue of messages and closes for one gateway."""

import asyncio
from array import array
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import AttachResponse
from protos.push.v1.push_pb2 import Message
from services.delivery.state.pushes import StartedPush
from services.errors import BusyError
from services.net.fairness import FairQueue
from services.process import push_traces

MAX_QUEUED_BYTES = 256 * 1024 * 1024
"""Byte budget of one gateway's queue, which apps share (see `has_capacity`). Beyond it the stream fails; after a new
Attach the gateway gets the rest."""

_BATCH_BYTES = 256 * 1024
"""Bytes, beside _BATCH_CONNECTIONS, from which a response is full.

It is small, so that few messages leave after their app is paused.
"""

_BATCH_CONNECTIONS = 8_000
_MAX_CONNECTIONS = 2_000
_OVERHEAD_BYTES = 64


class _QueuedSend(NamedTuple):
    """A message for some connections; `size` in bytes."""

    push: StartedPush
    message: Message
    connections: "array[int]"
    msgids: "array[int]"
    size: int


class _QueuedClose(NamedTuple):
    """The close of a connection."""

    connection: int
    reason: str
    size: int = _OVERHEAD_BYTES


class GatewayStream:
    """The response side of one Attach call: a queue for the connections of one gateway process.

    Apps take turns, each with at most _MAX_CONNECTIONS at once, and the messages of one app stay in order. So a
    broadcast to many connections delays another app's message by one batch. Messages of an app for which `is_paused`
    holds are kept until `release`. `on_capacity` is called when an app that had no capacity has it again.
    """

    def __init__(self, is_paused: Callable[[str], bool], on_capacity: Callable[[], None] = lambda: None) -> None:
        self._is_paused = is_paused
        self._on_capacity = on_capacity
        self._held: list[_QueuedSend] = []
        self._released: deque[_QueuedSend] = deque()
        self._queue: FairQueue[str, _QueuedSend | _QueuedClose] = FairQueue()
        self._queued_bytes = 0
        self._bytes_by_app: Counter[str] = Counter()
        self._full: set[str] = set()
        self._recorded = 0
        self._is_ended = False
        self._is_over_budget = False
        self._has_new = asyncio.Event()

    def has_capacity(self, appkey: str) -> bool:
        """Return whether more messages of the app should be sent: its queued bytes are fewer than the free bytes.

        So one app uses at most half of the budget, the next one half of the rest, and some is left for any other.
        """
        queued = self._bytes_by_app.get(appkey, 0)
        if not queued or queued < MAX_QUEUED_BYTES - self._queued_bytes:
            return True
        self._full.add(appkey)
        return False

    def send(self, push: StartedPush, connections: "array[int]", msgids: "array[int]") -> None:
        """Queue one message for connections; `msgids` holds one id for all of them, or one for each."""
        for at in range(0, len(connections), _MAX_CONNECTIONS):
            some = connections[at : at + _MAX_CONNECTIONS]
            ids = msgids if len(msgids) == 1 else msgids[at : at + _MAX_CONNECTIONS]
            size = _OVERHEAD_BYTES + push.send.message.ByteSize() + 8 * (len(some) + len(ids))
            self._put(push.send.appkey, _QueuedSend(push, push.send.message, some, ids, size), 1 + len(some))

    def release(self, may_send: Callable[[StartedPush], bool]) -> None:
        """Queue the kept messages of resumed apps before all others, unless their pushes are over."""
        held, released = self._held, list[_QueuedSend]()
        self._held = []
        for item in held:
            if self._is_paused(item.push.send.appkey):
                self._held.append(item)
            elif may_send(item.push):
                released.append(item)
            else:
                self._count(item, -1)
        self._released.extendleft(reversed(released))
        self._has_new.set()

    def close(self, connection: int, reason: str) -> None:
        """Queue the close of a connection; `reason` is the goodbye's."""
        self._put("", _QueuedClose(connection, reason), 1)

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
        while not (self._released or self._queue or self._recorded or self._is_over_budget or self._is_ended):
            self._has_new.clear()
            await self._has_new.wait()
        if self._is_ended:
            return None
        if self._is_over_budget:
            raise BusyError("the gateway does not keep up; attach again")
        return self._batch()

    def _put(self, appkey: str, item: _QueuedSend | _QueuedClose, turn: int) -> None:
        self._count(item, 1)
        if self._queued_bytes > MAX_QUEUED_BYTES and not self._is_over_budget:
            self._is_over_budget = True
            self._released, self._queue = deque(), FairQueue()
            self._held.clear()
        if not self._is_over_budget:
            self._queue.put(appkey, item, turn)
        self._has_new.set()

    def _batch(self) -> AttachResponse:
        response = AttachResponse(recorded=self._recorded)
        self._recorded = 0
        size = connections = 0
        while size < _BATCH_BYTES and connections < _BATCH_CONNECTIONS and (item := self._next()) is not None:
            if isinstance(item, _QueuedSend) and self._is_paused(item.push.send.appkey):
                self._held.append(item)
                continue
            size += item.size
            self._count(item, -1)
            if isinstance(item, _QueuedSend):
                connections += len(item.connections)
                response.sends.add(
                    message=item.message,
                    expires_ms=item.push.expires_ms,
                    connections=item.connections.tobytes(),
                    msgids=item.msgids.tobytes(),
                    trace=push_traces.sent_trace(item.push.msgid),
                )
            else:
                response.closes.add(connection=item.connection, reason=item.reason)
        self._note_capacity()
        return response

    def _count(self, item: _QueuedSend | _QueuedClose, sign: int) -> None:
        self._queued_bytes += sign * item.size
        if isinstance(item, _QueuedSend):
            appkey = item.push.send.appkey
            self._bytes_by_app[appkey] += sign * item.size
            if not self._bytes_by_app[appkey]:
                del self._bytes_by_app[appkey]

    def _note_capacity(self) -> None:
        """Tell when an app that had no capacity has at most half of its share queued."""
        free = MAX_QUEUED_BYTES - self._queued_bytes
        if freed := {appkey for appkey in self._full if 2 * self._bytes_by_app.get(appkey, 0) <= free}:
            self._full -= freed
            self._on_capacity()

    def _next(self) -> _QueuedSend | _QueuedClose | None:
        if self._released:
            return self._released.popleft()
        taken = self._queue.take()
        return taken[1] if taken else None
