"""The driver's clients of one database: of a ClickHouse server, or of the same engine in this process (chdb).

chdb allows one process per path and one path per process. Calls run in a few threads, each with a client of its own;
inserts have threads of their own, so that ingestion never waits for queries.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.binding import quote_identifier
from clickhouse_connect.driver.client import Client

from services.errors import ConflictError, UnavailableError

# Files that chdb writes exports to, beside the store. A closed file is removed, one of a killed process is not.

_PREFIX = "export"


def new_export_file(store: Path) -> IO[bytes]:
    """Return a new file beside the store at the path."""
    return cast(IO[bytes], NamedTemporaryFile(dir=store.parent, prefix=_PREFIX))


def remove_export_files(store: Path) -> None:
    """Remove the files that earlier processes left beside the store, which this process has locked."""
    for file in store.parent.glob(f"{_PREFIX}*"):
        if file.is_file():
            file.unlink(missing_ok=True)


_QUERY_THREADS = 4
_INSERT_THREADS = 4
_NICENESS = 10
_SETTINGS: dict[str, Any] = {
    "async_insert": 0,
    "max_partitions_per_insert_block": 0,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "compile_expressions": 0,
    "compile_aggregate_expressions": 0,
    "compile_sort_description": 0,
}
"""An insert is repeated with its token until it is answered: its rows count once in the tables of views too.

Nothing is compiled at run time: ClickHouse compiles an expression when it is evaluated for the fourth time, which took
that answer 35 to 50 ms, and later ones took as long as without it.
"""

_CHDB_OPTIONS: dict[str, Any] = {
    "memory_worker_period_ms": 60_000,
    "background_processing_pool_thread_sleep_seconds_if_nothing_to_do": 1,
    "background_move_processing_pool_thread_sleep_seconds_if_nothing_to_do": 600,
    "background_streaming_processing_pool_thread_sleep_seconds_if_nothing_to_do": 600,
}
"""Intervals at which chdb looks at its memory, and whether each table has background work.

The latter are the first intervals: each look without work lengthens them by a tenth. Inserts do not wait for them. A
change of a table that finds another change in progress waits for the next look: with a minute in place of a second,
changing the retention took 67 s. With chdb's defaults (50 ms, and 0.1 s at first) the looks take 0.5 to 0.8 % of a core
for the first idle minutes.
"""

_ANSWERS_WITHIN_S = 120
_KILLS_WITHIN_S = 5
_KILL = "KILL QUERY WHERE Settings['log_comment'] = {mark:String} ASYNC"
Result = TypeVar("Result")


class Engine:
    """`url` is http(s)://user:password@host:port of a server; without one, chdb at `path`. The rest: see ClickHouse."""

    def __init__(self, url: str | None, path: Path, database: str, *, low_priority: bool) -> None:
        self.database = database
        self.path = path
        self._url = url
        self._low_priority = low_priority
        lower = _lower_priority if url is None and low_priority else None
        self._queries = ThreadPoolExecutor(_QUERY_THREADS, thread_name_prefix="clickhouse", initializer=lower)
        self._inserts = ThreadPoolExecutor(_INSERT_THREADS, thread_name_prefix="clickhouse-insert", initializer=lower)
        self._killing = ThreadPoolExecutor(1, thread_name_prefix="clickhouse-kill")
        self._local = threading.local()
        self._clients: list[Client] = []
        self._lock: IO[bytes] | None = None
        self._opened = False

    @property
    def is_embedded(self) -> bool:
        return self._url is None

    def open(self) -> None:
        """Allow calls. ConflictError: another process holds the path."""
        if self._url is None and self._lock is None:
            self._lock = _lock(self.path)
            remove_export_files(self.path)
        self._opened = True

    def beside(self, database: str) -> "Engine":
        """Return the engine of another database of this open store."""
        other = Engine(self._url, self.path, database, low_priority=self._low_priority)
        other._opened = True
        return other

    def submit(self, call: Callable[[Client], Result]) -> "Future[Result]":
        """Run a call in a thread. UnavailableError: the engine is not open."""
        return self._submit(self._queries, call)

    def submit_insert(self, call: Callable[[Client], Result]) -> "Future[Result]":
        """Run an insert, which no query delays, in a thread. UnavailableError: the engine is not open."""
        return self._submit(self._inserts, call)

    def kill(self, mark: str) -> "Future[Any]":
        """Kill queries with this `log_comment`, from a thread of its own: queries may occupy all of theirs."""
        return self._killing.submit(lambda: self._client(_KILLS_WITHIN_S).query(_KILL, parameters={"mark": mark}))

    def recreate(self, client: Client) -> None:
        """Empty the database."""
        name = quote_identifier(self.database)
        client.command(f"DROP DATABASE IF EXISTS {name} SYNC", use_database=False)
        client.command(f"CREATE DATABASE {name}", use_database=False)

    def release(self) -> None:
        """Wait for the calls in progress, then release clients and the lock."""
        for threads in (self._queries, self._inserts, self._killing):
            threads.shutdown(wait=True)
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._lock:
            self._lock.close()

    def _submit(self, threads: ThreadPoolExecutor, call: Callable[[Client], Result]) -> "Future[Result]":
        if not self._opened:
            raise UnavailableError("the analytics store is not open yet; the service's log says why")
        return threads.submit(lambda: call(self._client(_ANSWERS_WITHIN_S)))

    def _client(self, answers_within_s: int) -> Client:
        """Return the client of this thread."""
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._connect(answers_within_s)
            self._clients.append(client)
            self._local.client = client
        return client

    def _connect(self, answers_within_s: int) -> Client:
        client = self._connect_local() if self._url is None else self._connect_server(self._url, answers_within_s)
        client.command(f"CREATE DATABASE IF NOT EXISTS {quote_identifier(self.database)}")
        client.database = self.database
        return client

    def _connect_local(self) -> Client:
        return clickhouse_connect.get_client(
            interface="chdb", path=str(self.path), settings=_SETTINGS, chdb_options=_CHDB_OPTIONS
        )

    def _connect_server(self, url: str, answers_within_s: int) -> Client:
        parts = urlsplit(url)
        return clickhouse_connect.get_client(
            interface=parts.scheme,
            host=parts.hostname,
            port=parts.port or 0,
            username=unquote(parts.username or "default"),
            password=unquote(parts.password or ""),
            settings=_SETTINGS,
            connect_timeout=5,
            send_receive_timeout=answers_within_s,
            autogenerate_session_id=False,
        )


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
