"""Calls between roles send no HTTP/2 pings besides those of the keepalive, because each wakes gRPC's threads."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from protos.runtime.v1.log_pb2 import AwaitRequest, Position
from services.net.rpc.channel import connect
from tests.services.net.rpc.servicers import BOUND_S, OverASocket, ServicersOnChannel

CALLS = 5
_PREFACE_BYTES = 24
_HEADER_BYTES = 9
_DATA = 0x0
_PING = 0x6
_READ_BYTES = 65_536


class Relay:
    """Passes the bytes of one connection on to the server at `target`, and keeps them by direction."""

    def __init__(self, target: Path) -> None:
        self.requests = bytearray()
        self.responses = bytearray()
        self._target = target

    async def serve(self, path: Path) -> asyncio.Server:
        return await asyncio.start_unix_server(self._relay, path)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        await asyncio.gather(
            _copy(reader, server_writer, self.requests),
            _copy(server_reader, writer, self.responses),
        )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(_READ_BYTES):
            seen += part
            writer.write(part)
    writer.close()


def frame_types(stream: bytes | bytearray) -> Iterator[int]:
    """Yield the types of the HTTP/2 frames (RFC 9113, section 4.1)."""
    while len(stream) >= _HEADER_BYTES:
        yield stream[3]
        stream = stream[_HEADER_BYTES + int.from_bytes(stream[:3]) :]


async def test_calls_with_data_send_no_pings(tmp_path: Path) -> None:
    relay = Relay(tmp_path / "s")
    async with OverASocket(ServicersOnChannel(), tmp_path) as servicers:
        await servicers.channel.close()
        relaying = await relay.serve(tmp_path / "relay")
        servicers.channel = connect(f"unix:{tmp_path}/relay")
        asked = AwaitRequest(positions=[Position(topic="devices", partition=3, offset=1)])
        for _ in range(CALLS):
            await asyncio.wait_for(servicers.wait(asked), BOUND_S)
        requests = list(frame_types(relay.requests[_PREFACE_BYTES:]))
        responses = list(frame_types(relay.responses))
        relaying.close()
    assert requests.count(_DATA) >= CALLS
    assert responses.count(_DATA) >= CALLS
    assert _PING not in requests + responses
