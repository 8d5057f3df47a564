"""The analytics store: a ClickHouse server, or the same engine inside this process (chdb). The only file that calls it.

The engine in the process allows one process per path and one path per process. Calls run in a few threads, each with
a client of its own. Errors of the driver become UnavailableError.
"""

import asyncio
import contextlib
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.binding import quote_identifier
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, Error
from urllib3.exceptions import HTTPError

from analytics.store.error_hints import advice
from services.runtime.errors import ConflictError, UnavailableError

PIECE_BYTES = 256 * 1024

_THREADS = 4
_NICENESS = 10
_SETTINGS: dict[str, Any] = {"async_insert": 0, "max_partitions_per_insert_block": 0}
_ARROW_SETTINGS = {"output_format_arrow_low_cardinality_as_dictionary": 1}
Result = TypeVar("Result")


class ClickHouse:
    """One database. `url` is http(s)://user:password@host:port of a server; without one, chdb at `path`."""

    def __init__(self, url: str | None, path: Path, database: str = "carillon") -> None:
        self.database = database
        self._url = url
        self._path = path
        self._threads = ThreadPoolExecutor(
            _THREADS, thread_name_prefix="clickhouse", initializer=_stand_back if url is None else None
        )
        self._local = threading.local()
        self._clients: list[Client] = []
        self._lock: IO[bytes] | None = None
        self._opened = False

    async def open(self) -> None:
        """Make the database. ConflictError: another process has the path open. UnavailableError: no server answers."""
        if self._url is None and self._lock is None:
            self._lock = _lock(self._path)
        self._opened = True
        await self._call(lambda client: None)

    def beside(self, database: str) -> "ClickHouse":
        """Another database of the same opened store; closed before this one."""
        other = ClickHouse(self._url, self._path, database)
        other._opened = True
        return other

    async def drop(self) -> None:
        """Empty the database."""
        await self._call(self._recreate)

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        """Insert durably, at most once for each token; an error leaves it unknown whether the rows are there."""
        settings = {"insert_deduplication_token": token}
        await self._call(lambda client: client.insert_arrow(table, rows, settings=settings))

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """The result's rows. Parameters stand in the query as {name:Type}."""
        given = dict(parameters or {})
        result: Sequence[Sequence[Any]] = await self._call(
            lambda client: client.query(sql, parameters=given).result_rows
        )
        return result

    async def arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """The result as columns; LowCardinality columns are dictionaries."""
        given = dict(parameters or {})
        return await self._call(lambda client: client.query_arrow(sql, parameters=given, settings=_ARROW_SETTINGS))

    async def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a statement that returns nothing."""
        given = dict(parameters or {})
        await self._call(lambda client: client.command(sql, parameters=given))

    @asynccontextmanager
    async def file(
        self, sql: str, parameters: Mapping[str, Any], file_format: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The result in one of ClickHouse's formats, in pieces of at most PIECE_BYTES; never as a whole in memory."""
        write = self._written if self._url is None else _streamed
        opened = await self._call(lambda client: write(client, sql, dict(parameters), file_format))
        try:
            yield self._pieces(opened)
        finally:
            await self._call(lambda client: opened.close())

    def _written(self, client: Client, sql: str, parameters: dict[str, Any], file_format: str) -> IO[bytes]:
        """The engine in the process hands over most formats as one string only, but writes a file in parts."""
        file = NamedTemporaryFile(dir=self._path.parent, prefix="export")  # noqa: SIM115
        given = {**parameters, "_file": file.name, "_format": file_format}
        client.command(f"INSERT INTO FUNCTION file({{_file:String}}, {{_format:String}}) {sql}", parameters=given)
        return cast(IO[bytes], file)

    async def _pieces(self, opened: IO[bytes]) -> AsyncIterator[bytes]:
        while piece := await self._call(lambda client: opened.read(PIECE_BYTES)):
            yield piece

    async def close(self) -> None:
        """Wait for the calls under way and let go."""
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._threads.shutdown(wait=True)
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._lock:
            self._lock.close()

    async def _call(self, function: Callable[[Client], Result]) -> Result:
        if not self._opened:
            raise UnavailableError("the analytics store is not open yet")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(self._client()))
        except (ClickHouseError, HTTPError, OSError) as error:
            raise UnavailableError(f"ClickHouse: {_told(error)}") from error

    def _client(self) -> Client:
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._connect()
            self._clients.append(client)
            self._local.client = client
        return client

    def _connect(self) -> Client:
        client = self._connect_local() if self._url is None else self._connect_server(self._url)
        client.command(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(self.database)}")
        client.database = self.database
        return client

    def _recreate(self, client: Client) -> None:
        name = quote_identifier(self.database)
        client.command(f"DROP DATABASE IF EXISTS {name} SYNC", use_database=False)
        client.command(f"CREATE DATABASE {name}", use_database=False)

    def _connect_local(self) -> Client:
        return clickhouse_connect.get_client(interface="chdb", path=str(self._path), settings=_SETTINGS)

    def _connect_server(self, url: str) -> Client:
        parts = urlsplit(url)
        return clickhouse_connect.get_client(
            interface=parts.scheme,
            host=parts.hostname,
            port=parts.port or 0,
            username=unquote(parts.username or "default"),
            password=unquote(parts.password or ""),
            settings=_SETTINGS,
            connect_timeout=5,
            send_receive_timeout=120,
            autogenerate_session_id=False,
        )


def _streamed(client: Client, sql: str, parameters: dict[str, Any], file_format: str) -> IO[bytes]:
    return cast(IO[bytes], client.raw_stream(sql, parameters=parameters, fmt=file_format))


def _stand_back() -> None:
    """Let pushes go first: the engine's own threads come from this one and are as patient, where threads can be."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _lock(path: Path) -> IO[bytes]:
    """Hold the path for this process; the system lets go of it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConflictError(
            f"the analytics store {path} is open in another process; stop the running service first"
        ) from error
    return lock


def _told(error: Exception) -> str:
    """The first line, and what can be done about it."""
    what = str(error).partition("\n")[0][:500]
    remedy = advice(error.code) if isinstance(error, Error) else ""
    return f"{what}: {remedy}" if remedy else what
