"""A ClickHouse server for tests: chdb behind ClickHouse's HTTP interface, as a child process that may be killed."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.clickhouse_http import USER

_STOP_S = 20


class ClickHouseServer:
    """On a free port of 127.0.0.1, the same after a restart; its data in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{USER}@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return once it listens."""
        command = [sys.executable, "-m", "tests.support.clickhouse_http", str(self._directory), str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the server ended at its start"
        self.port = int(line)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.wait(_STOP_S)
            assert self._process.stdout
            self._process.stdout.close()
            self._process = None


class LossyNetwork:
    """Between clients and a server: of the inserts that come through it, some are made but their answers are lost."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self.inserts = 0
        self.lost = 0
        self.to_lose = 0
        self.port = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["LossyNetwork"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        sending = asyncio.create_task(self._requests(reader, to_server))
        try:
            while answer := await from_server.read(65_536):
                if self._is_insert and self.to_lose:
                    self.to_lose -= 1
                    self.lost += 1
                    return
                writer.write(answer)
        finally:
            sending.cancel()
            to_server.close()
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            to_server.write(data)
