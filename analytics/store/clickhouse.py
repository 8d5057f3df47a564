"""The analytics store: a ClickHouse server, or the same engine in this process (chdb). Only this file calls the driver.

chdb allows one process per path and one path per process. Calls run in a few threads, each with a client of its own.
Errors of the driver become UnavailableError.
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

from analytics.store.error_hints import error_hint
from services.runtime.errors import ConflictError, UnavailableError

PIECE_BYTES = 256 * 1024

_THREADS = 4
_NICENESS = 10
_SETTINGS: dict[str, Any] = {"async_insert": 0, "max_partitions_per_insert_block": 0}
_ARROW_SETTINGS = {"output_format_arrow_low_cardinality_as_dictionary": 1}
Result = TypeVar("Result")


class ClickHouse:
    """One database. `url` is http(s)://user:password@host:port of a server; without one, chdb at `path`.

    `low_priority`: chdb's threads run after the other threads of this machine, so that pushes go first.
    """

    def __init__(self, url: str | None, path: Path, database: str = "carillon", *, low_priority: bool = True) -> None:
        self.database = database
        self._url = url
        self._path = path
        self._low_priority = low_priority
        self._threads = ThreadPoolExecutor(
            _THREADS,
            thread_name_prefix="clickhouse",
            initializer=_lower_priority if url is None and low_priority else None,
        )
        self._local = threading.local()
        self._clients: list[Client] = []
        self._lock: IO[bytes] | None = None
        self._opened = False

    async def open(self) -> None:
        """Create the database. ConflictError: another process holds the path. UnavailableError: no server answers."""
        if self._url is None and self._lock is None:
            self._lock = _lock(self._path)
        self._opened = True
        await self._call(lambda client: None)

    def beside(self, database: str) -> "ClickHouse":
        """Return another database of this store, which is open; close it before this one."""
        other = ClickHouse(self._url, self._path, database, low_priority=self._low_priority)
        other._opened = True
        return other

    async def drop(self) -> None:
        """Empty the database."""
        await self._call(self._recreate)

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        """Insert durably, once for each token. After an error the rows may be inserted or not; insert them again."""
        settings = {"insert_deduplication_token": token}
        await self._call(lambda client: client.insert_arrow(table, rows, settings=settings))

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """Run a query and return its rows. The query refers to parameters as {name:Type}."""
        given = dict(parameters or {})
        result: Sequence[Sequence[Any]] = await self._call(
            lambda client: client.query(sql, parameters=given).result_rows
        )
        return result

    async def arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Run a query and return its columns; LowCardinality columns are dictionaries."""
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
        """Run a query; yield its result as a file of a ClickHouse format, in pieces of at most PIECE_BYTES."""
        write = self._exported_to_file if self._url is None else _streamed
        opened = await self._call(lambda client: write(client, sql, dict(parameters), file_format))
        try:
            yield self._pieces(opened)
        finally:
            await self._call(lambda client: opened.close())

    def _exported_to_file(self, client: Client, sql: str, parameters: dict[str, Any], file_format: str) -> IO[bytes]:
        """Have chdb write a file: it returns most formats as one string only, which may exceed the memory."""
        file = NamedTemporaryFile(dir=self._path.parent, prefix="export")  # noqa: SIM115
        given = {**parameters, "_file": file.name, "_format": file_format}
        client.command(f"INSERT INTO FUNCTION file({{_file:String}}, {{_format:String}}) {sql}", parameters=given)
        return cast(IO[bytes], file)

    async def _pieces(self, opened: IO[bytes]) -> AsyncIterator[bytes]:
        while piece := await self._call(lambda client: opened.read(PIECE_BYTES)):
            yield piece

    async def close(self) -> None:
        """Wait for the calls in progress, then release clients and the lock."""
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
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
            raise UnavailableError(f"ClickHouse: {_error_text(error)}") from error

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


def _lower_priority() -> None:
    """Lower the thread's priority; chdb's own threads inherit it where the system has priorities of threads."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _lock(path: Path) -> IO[bytes]:
    """Lock the path for this process; the system releases the lock when the process ends, however it ends."""
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


def _error_text(error: Exception) -> str:
    """Return the first line of the error and a hint for the operator."""
    text = str(error).partition("\n")[0][:500]
    hint = error_hint(error.code) if isinstance(error, Error) else ""
    return f"{text}: {hint}" if hint else text
