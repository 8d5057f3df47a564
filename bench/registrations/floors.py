"""The floors of bench.registrations: WebSocket servers that answer every hello alike, and the event log alone."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from bench.programs import Program
from services.domain.device_protocol.frames import MAX_FRAME_BYTES, SUBPROTOCOL
from services.domain.topics import DEVICE_COMMANDS, DEVICES, TOPICS, device_key
from services.gateway.acceptor import BACKLOG, PATH
from services.gateway.websocket.protocol import WebSocketProtocol, WebSocketSettings
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.log.topics import partition_of
from testkit.gateway.answering_listener import AnsweringListener

PARTITIONS = 32
_CORE = 0
_WELCOME = b'{"type":"welcome","token":"%s","key":"%s","heartbeat":240,"new":true}' % (b"0" * 32, b"0" * 27)
_RECORD_BYTES = 110


class Cost(NamedTuple):
    """What registering or connecting a device costs. `clients_cpu_us` is the part of the clients; 0: there are none."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    clients_cpu_us: float


@contextlib.contextmanager
def websocket_server(name: str) -> Iterator[tuple[Program, int]]:
    """Run the server of SERVERS; yield it and its port."""
    program = Program([sys.executable, "-m", "bench.registrations.floors", name], _CORE)
    try:
        yield program, program.receive()[0]
    finally:
        program.close()


def log_floor(directory: Path, devices: int, at_once: int) -> Cost:
    """Append a command and then a record for each device, as a registration does, with `at_once` devices at a time."""
    took_s: list[float] = []
    began, began_cpu = time.perf_counter(), time.process_time()
    uvloop.run(_append_all(directory, devices, at_once, took_s))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    took_s.sort()
    p50, p99 = took_s[devices // 2] * 1000, took_s[devices * 99 // 100] * 1000
    return Cost(devices / wall_s, p50, p99, cpu_s / devices * 1e6, 0)


async def _append_all(directory: Path, devices: int, at_once: int, took_s: list[float]) -> None:
    log = SqliteLog(directory / "floor.db", TOPICS, partitions=PARTITIONS)
    numbers = iter(range(devices))

    async def append() -> None:
        for number in numbers:
            began = time.perf_counter()
            key = device_key("1000000001", f"{number:032x}")
            partition = partition_of(key, PARTITIONS)
            for topic in (DEVICE_COMMANDS, DEVICES):
                await log.append([NewRecord(topic.name, partition, key, bytes(_RECORD_BYTES))])
            took_s.append(time.perf_counter() - began)

    await asyncio.gather(*(append() for _ in range(at_once)))
    await log.close()


class _PicowsListener(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            transport.send(WSMsgType.TEXT, _WELCOME)


def _picows_listener(request: WSUpgradeRequest) -> _PicowsListener:
    return _PicowsListener()


async def _picows() -> asyncio.Server:
    return await ws_create_server(
        _picows_listener, "127.0.0.1", 0, backlog=BACKLOG, use_aiofastnet=False, read_buffer_init_size=2048
    )


async def _own() -> asyncio.Server:
    endpoint = WebSocketSettings(PATH, SUBPROTOCOL, MAX_FRAME_BYTES, upgrade_s=10)

    def protocol() -> WebSocketProtocol:
        return WebSocketProtocol(endpoint, "127.0.0.1", lambda: AnsweringListener(_WELCOME), lambda: None)

    return await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, backlog=BACKLOG)


SERVERS = {"gateway's": _own, "picows": _picows}
"""WebSocket servers by name: the gateway's protocol, and the library that does the same."""


async def _serve(name: str) -> None:
    server = await SERVERS[name]()
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
