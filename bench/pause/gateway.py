"""A gateway process whose devices are simulated: delivery's stream and the queues before the sockets are the real ones.

It answers the line `announced` with the number of connections that it has announced to delivery, and `written` with the
number of frames written and the time of the last one (ns of the monotonic clock). `pause` and `resume` stand for what a
gateway reads of topic `apps`.
"""

import asyncio
import sys
import threading
import time
from random import Random
from typing import Any, cast

from protos.delivery.v1.delivery_pb2 import AttachRequest
from services.domain.apps import AppDirectory
from services.gateway.connection import NOTHING_SENT, DeviceConnection
from services.gateway.connections import ConnectionTable, DeviceSession
from services.gateway.push_sender import PushResumption, PushSender
from services.gateway.uplink import UnreportedQueue, Uplink
from services.net.rpc.channel import connect
from services.process.clock import SystemClock
from services.replica.instances import OwnerOfShard
from testkit.services import running_services

APP = "1000000001"
PARTITIONS = 32


class SlowSockets:
    """The simulated sockets: writing a frame keeps the core busy for 1 / `frames_per_s`."""

    def __init__(self, frames_per_s: int) -> None:
        self.written = self.last_ns = 0
        self._frame_ns = 1_000_000_000 // frames_per_s

    def write(self) -> None:
        end_ns = time.monotonic_ns() + self._frame_ns
        while (now_ns := time.monotonic_ns()) < end_ns:
            pass
        self.written += 1
        self.last_ns = now_ns


class SimulatedConnection:
    """A device's connection that writes to the slow sockets."""

    __slots__ = ("_sockets", "session")
    sent = NOTHING_SENT

    def __init__(self, session: DeviceSession, sockets: SlowSockets) -> None:
        self.session = session
        self._sockets = sockets

    def send_push(self, *_: Any) -> None:
        self._sockets.write()


class CountingQueue(UnreportedQueue):
    """Counts the connections that were handed to delivery's stream."""

    announced = 0

    def take(self) -> AttachRequest | None:
        request = super().take()
        if request is not None:
            self.announced += len(request.connected)
        return request


class OneApp:
    """The gateway's app directory in place of the real one: it knows whether the one app is paused."""

    def __init__(self) -> None:
        self._paused = False
        self.pauses_changed = asyncio.Event()

    def is_paused(self, appkey: str) -> bool:
        return self._paused

    def set_pause(self, paused: bool) -> None:
        self._paused = paused
        self.pauses_changed.set()
        self.pauses_changed = asyncio.Event()


def answer_lines(loop: asyncio.AbstractEventLoop, apps: OneApp, sockets: SlowSockets, queue: CountingQueue) -> None:
    for line in sys.stdin:
        command = line.strip()
        if command in ("pause", "resume"):
            loop.call_soon_threadsafe(apps.set_pause, command == "pause")
        print(*([queue.announced] if command == "announced" else [sockets.written, sockets.last_ns]), flush=True)


async def run(address: str, devices: int, frames_per_s: int) -> None:
    sockets, queue = SlowSockets(frames_per_s), CountingQueue()
    table: ConnectionTable[DeviceConnection] = ConnectionTable()
    for device in range(devices):
        session = DeviceSession(device + 1, APP, f"token {device}", device % PARTITIONS, device // PARTITIONS)
        table.add(session, cast(DeviceConnection, SimulatedConnection(session, sockets)))
    clock, apps, delivery = SystemClock(), OneApp(), connect(address)
    pushes = PushSender(table, clock.now_ms, Random(1), apps.is_paused)
    resumption = PushResumption(cast(AppDirectory, apps), pushes, [delivery], clock)
    uplink = Uplink(
        delivery,
        OwnerOfShard(None, "delivery", 0),
        "bench",
        queue,
        lambda: list(table.sessions(0, 1)),
        pushes.handle,
        Random(1),
    )
    arguments = (asyncio.get_running_loop(), apps, sockets, queue)
    threading.Thread(target=answer_lines, args=arguments, daemon=True).start()
    async with running_services([resumption, uplink]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
