"""A ClickHouse server for tests: chdb behind ClickHouse's HTTP interface, as a child process that may be killed."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from testkit.clickhouse.server_process import USER, refusal_of

_STOP_S = 20
_CHUNK_BYTES = 65_536


class ClickHouseServer:
    """The server process, on a port of 127.0.0.1 that stays the same after a restart; its data is in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{USER}@127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start the server; return once it listens."""
        command = [sys.executable, "-m", "testkit.clickhouse.server_process", str(self._directory), str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the server ended at its start"
        self.port = int(line)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.wait(_STOP_S)
            assert self._process.stdout
            self._process.stdout.close()
            self._process = None

    def pause(self) -> None:
        """Stop answering, with connections still accepted, until `resume`."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def refuse_inserts(self, error: str) -> None:
        """Answer every insert with this error of ClickHouse; an empty one lets inserts work again."""
        refusal_of(str(self._directory)).write_text(error)


class LossyNetwork:
    """A proxy before a server: inserts reach the server, but the answers to the first `to_lose` of them are lost.

    A connection breaks once it has passed on `most_bytes` of answers.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.to_lose = 0
        self.lost = 0
        self.most_bytes = sys.maxsize
        self.url = ""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["LossyNetwork"]:
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            self.url = f"http://{USER}@127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _connected(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        is_insert = asyncio.Event()
        sending = asyncio.create_task(_requests(from_client, to_server, is_insert))
        given = 0
        while given < self.most_bytes and (answer := await from_server.read(_CHUNK_BYTES)):
            given += len(answer)
            if is_insert.is_set() and self.lost < self.to_lose:
                self.lost += 1
                break
            to_client.write(answer)
        sending.cancel()
        to_server.close()
        to_client.close()


async def _requests(from_client: asyncio.StreamReader, to_server: asyncio.StreamWriter, insert: asyncio.Event) -> None:
    while data := await from_client.read(_CHUNK_BYTES):
        if b"insert_deduplication_token=" in data:
            insert.set()
        elif data.startswith(b"POST "):
            insert.clear()
        to_server.write(data)
    to_server.close()
