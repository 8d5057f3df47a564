"""The analytics store: the role's queries to ClickHouse, and the cancellation of a query whose caller leaves.

Errors of the driver become UnavailableError. A query whose caller is cancelled is stopped in the engine too: it carries
a mark by which it is killed.
"""

import asyncio
import contextlib
import copy
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, Error
from urllib3.exceptions import HTTPError

from analytics.store.engine import Engine, new_export_file
from analytics.store.query_limits import NO_LIMITS, QueryLimits
from services.errors import UnavailableError
from services.process import background

# Hints for operators by the code of a ClickHouse error, for the logs.

_CREDENTIALS = "correct the user and password in CARILLON_CLICKHOUSE_URL"
_RIGHTS = "give the user of CARILLON_CLICKHOUSE_URL every right on the database"
_TABLES = "undo the change made in the database, or rebuild it with `carillon replay analytics`"
_READ_ONLY = "make ClickHouse, and the user of CARILLON_CLICKHOUSE_URL, writable again"
_DISK = "free space on ClickHouse's disk"
_MEMORY = "raise CARILLON_QUERY_MEMORY_MB, give ClickHouse more memory, or reduce its other load"
_TIME = "raise CARILLON_QUERY_SECONDS, or ask for less"
_HINTS = {
    16: _TABLES,  # NO_SUCH_COLUMN_IN_TABLE
    20: _TABLES,  # NUMBER_OF_COLUMNS_DOESNT_MATCH
    53: _TABLES,  # TYPE_MISMATCH
    60: _TABLES,  # UNKNOWN_TABLE
    70: _TABLES,  # CANNOT_CONVERT_TYPE
    81: _TABLES,  # UNKNOWN_DATABASE
    159: _TIME,  # TIMEOUT_EXCEEDED
    164: _READ_ONLY,  # READONLY
    192: _CREDENTIALS,  # UNKNOWN_USER
    193: _CREDENTIALS,  # WRONG_PASSWORD
    194: _CREDENTIALS,  # REQUIRED_PASSWORD
    241: _MEMORY,  # MEMORY_LIMIT_EXCEEDED
    242: _READ_ONLY,  # TABLE_IS_READ_ONLY
    243: _DISK,  # NOT_ENOUGH_SPACE
    497: _RIGHTS,  # ACCESS_DENIED
    516: _CREDENTIALS,  # AUTHENTICATION_FAILED
}


def error_hint(code: int | None) -> str:
    """Return what an operator can do about the error; empty if trying again may be enough."""
    return _HINTS.get(code or 0, "")


# Has the system read files into its page cache, so that the first random reads of a table do not wait for the disk.

MOST_BYTES = 512 * 1024 * 1024

_ADVICE_BYTES = 128 * 1024
"""Linux reads at most the read-ahead of the disk for each piece of advice, 128 KiB on most, and forgets the rest."""


def read_ahead(parts: Iterable[Path]) -> None:
    """Have the columns of a table's parts read, up to MOST_BYTES, without waiting for that. Parts may be gone already.

    Does nothing where the system takes no such advice.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    left = MOST_BYTES
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            for file in sorted(part.glob("*.bin")):
                size = file.stat().st_size
                left -= size
                if left < 0:
                    return
                _read_file_ahead(file, size)


def _read_file_ahead(file: Path, size: int) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        for start in range(0, size, _ADVICE_BYTES):
            os.posix_fadvise(descriptor, start, _ADVICE_BYTES, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)


PIECE_BYTES = 256 * 1024

_ARROW_SETTINGS = {"output_format_arrow_low_cardinality_as_dictionary": 1}
_INSERT = {"optimize_on_insert": 0}
"""Rows of the same key replace each other when parts are merged; doing that in each insert too costs as much again."""

_WHOLE = {"max_insert_threads": 1, "min_insert_block_size_rows": 2**40, "min_insert_block_size_bytes": 2**40}
_PARTS = """
SELECT path FROM system.parts
WHERE active AND database = currentDatabase() AND table = {table:String} ORDER BY rows DESC
"""
_KILL_EVERY_S = 0.05
_STOPPED_WITHIN_S = 1.0
_ERRORS = (ClickHouseError, HTTPError, OSError)
Result = TypeVar("Result")


class ClickHouse:
    """One database. `url` is http(s)://user:password@host:port of a server; without one, chdb at `path`.

    `low_priority`: chdb's threads run after the other threads of this machine, so that pushes go first.
    """

    def __init__(self, url: str | None, path: Path, database: str = "carillon", *, low_priority: bool = True) -> None:
        self.database = database
        self._engine = Engine(url, path, database, low_priority=low_priority)
        self._limits = NO_LIMITS
        self._kills: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Create the database. ConflictError: another process holds the path. UnavailableError: no server answers."""
        with _translated_errors():
            self._engine.open()
        await self._call(lambda client: None)

    def beside(self, database: str) -> "ClickHouse":
        """Return another database of this open store; close it before this one."""
        other = copy.copy(self)
        other.database = database
        other._engine = self._engine.beside(database)
        return other

    def limited(self, limits: QueryLimits) -> "ClickHouse":
        """Return a view of this database with these query limits; it opens and closes with this one."""
        other = copy.copy(self)
        other._limits = limits
        return other

    async def drop(self) -> None:
        """Empty the database."""
        await self._call(self._engine.recreate)

    async def insert(self, table: str, rows: pa.Table, token: str) -> None:
        """Insert durably, once for each token, without waiting for queries.

        After an error the rows may be inserted or not; insert them again.
        """
        settings = {**_INSERT, "insert_deduplication_token": token}
        with _translated_errors():
            await asyncio.wrap_future(
                self._engine.submit_insert(lambda client: client.insert_arrow(table, rows, settings=settings))
            )

    async def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a statement that returns nothing, to its end."""
        given = dict(parameters or {})
        await self._call(lambda client: client.command(sql, parameters=given))

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """Run a query and return its rows. The query refers to parameters as {name:Type}."""
        given = dict(parameters or {})
        result: Sequence[Sequence[Any]] = await self._query(
            lambda client, settings: client.query(sql, parameters=given, settings=settings).result_rows
        )
        return result

    async def read_ahead(self, table: str) -> None:
        """Have the system read a table's files into its page cache; does nothing for a server."""
        if self._engine.is_embedded:
            parts = await self.rows(_PARTS, {"table": table})
            await asyncio.to_thread(read_ahead, [Path(path) for (path,) in parts])

    async def arrow(self, sql: str, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        """Run a query and return its columns; LowCardinality columns are dictionaries."""
        given = dict(parameters or {})
        return await self._query(
            lambda client, settings: client.query_arrow(sql, parameters=given, settings=settings | _ARROW_SETTINGS)
        )

    async def store(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run an INSERT SELECT as a query; of its rows for one partition of the table all are stored, or none."""
        given = dict(parameters or {})
        await self._query(lambda client, settings: client.command(sql, parameters=given, settings=settings | _WHOLE))

    async def store_rows(self, table: str, rows: pa.Table) -> None:
        """Insert rows that queries returned, in the queries' threads; they may be inserted twice, or not at all."""
        await self._query(lambda client, settings: client.insert_arrow(table, rows, settings=settings | _INSERT))

    @asynccontextmanager
    async def file(
        self, sql: str, parameters: Mapping[str, Any], file_format: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Run a query; yield its result as a file of a ClickHouse format, in pieces of at most PIECE_BYTES."""
        write = self._exported_to_file if self._engine.is_embedded else _streamed
        mark = _new_mark()
        opened = await self._query(
            lambda client, settings: write(client, sql, dict(parameters), file_format, settings), mark
        )
        try:
            yield self._pieces(opened, mark)
        finally:
            await self._call(lambda client: opened.close())

    def _exported_to_file(
        self, client: Client, sql: str, parameters: dict[str, Any], file_format: str, settings: dict[str, Any]
    ) -> IO[bytes]:
        """Have chdb write a file: it returns most formats as one string only, which may exceed the memory."""
        file = new_export_file(self._engine.path)
        given = {**parameters, "_file": file.name, "_format": file_format}
        insert = f"INSERT INTO FUNCTION file({{_file:String}}, {{_format:String}}) {sql}"
        try:
            client.command(insert, parameters=given, settings=settings)
        except BaseException:
            file.close()
            raise
        return file

    async def _pieces(self, opened: IO[bytes], mark: str) -> AsyncIterator[bytes]:
        while piece := await self._query(lambda client, settings: opened.read(PIECE_BYTES), mark):
            yield piece

    async def close(self) -> None:
        """Wait for the calls in progress, then release clients and the lock."""
        await asyncio.to_thread(self._engine.release)

    async def _call(self, call: Callable[[Client], Result]) -> Result:
        """Run a call to its end, even if the caller is cancelled."""
        with _translated_errors():
            return await asyncio.wrap_future(self._engine.submit(call))

    async def _query(self, query: Callable[[Client, dict[str, Any]], Result], mark: str | None = None) -> Result:
        """Run a query with its limits and a mark to kill it by; stop it when the caller is cancelled."""
        mark = mark or _new_mark()
        settings = {**self._limits.settings(), "log_comment": mark}
        running = self._engine.submit(lambda client: query(client, settings))
        answer = asyncio.wrap_future(running)
        with _translated_errors():
            try:
                return await asyncio.shield(answer)
            except asyncio.CancelledError:
                if not running.cancel():
                    await self._stop(answer, mark)
                raise

    async def _stop(self, answer: "asyncio.Future[Any]", mark: str) -> None:
        """Stop a query. Return when it has ended, so that its thread is free, or after _STOPPED_WITHIN_S."""
        kill = background.start("killing a query", self._kill(answer, mark))
        self._kills.add(kill)
        kill.add_done_callback(self._kills.discard)
        await asyncio.wait([kill], timeout=_STOPPED_WITHIN_S)

    async def _kill(self, answer: "asyncio.Future[Any]", mark: str) -> None:
        """Kill a query until it has ended: one that is about to begin is not found the first time."""
        while not answer.done():
            with contextlib.suppress(*_ERRORS):
                await asyncio.wrap_future(self._engine.kill(mark))
            await asyncio.wait([answer], timeout=_KILL_EVERY_S)
        answer.exception()  # Taken, because nobody awaits the answer any more.


def _streamed(
    client: Client, sql: str, parameters: dict[str, Any], file_format: str, settings: dict[str, Any]
) -> IO[bytes]:
    return cast(IO[bytes], client.raw_stream(sql, parameters=parameters, fmt=file_format, settings=settings))


def _new_mark() -> str:
    return f"carillon-{secrets.token_hex(8)}"


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise UnavailableError(f"ClickHouse: {_error_text(error)}") from error


def _error_text(error: Exception) -> str:
    """Return the first line of the error and a hint for the operator."""
    text = str(error).partition("\n")[0][:500]
    hint = error_hint(error.code) if isinstance(error, Error) else ""
    return f"{text}: {hint}" if hint else text
