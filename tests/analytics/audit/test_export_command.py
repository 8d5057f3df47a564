"""`carillon audit export` as a process: its progress, and the files that it leaves when it ends early."""

import asyncio
import os
import pty
import re
import resource
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from analytics.server import AnalyticsServicer
from analytics.store.clickhouse import ClickHouse
from analytics.store.query_limits import QueryLimits
from carillon.commands.role_calls import SOCKET_NAME
from protos.analytics.v1.analytics_pb2_grpc import add_AnalyticsServiceServicer_to_server
from services.errors import UnavailableError
from services.log.sqlite.log import SqliteLog
from services.net.rpc.server import Server, serve
from services.process.clock import ManualClock
from testkit.installation.processes import CARILLON
from testkit.waiting import until_holds
from tests.analytics.records import PARTITIONS, T0, send, started
from tests.analytics.service import new_ingestion, running_ingestion

ROWS = 20_000
OLD = "an older export"


class HaltingStore:
    """A store whose files pause after the first piece until `continues` has a result: go on, end, or an exception."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self.continues: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clickhouse, name)

    def limited(self, limits: QueryLimits) -> "HaltingStore":
        return self

    @asynccontextmanager
    async def file(self, sql: str, parameters: Mapping[str, Any], file_format: str) -> AsyncIterator[Any]:
        async with self._clickhouse.file(sql, parameters, file_format) as pieces:
            yield self._halting(pieces)

    async def _halting(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for piece in pieces:
            yield piece
            if not await asyncio.shield(self.continues):
                return


class ExportedService:
    """A service with a push to many devices, and an output file with an older export."""

    def __init__(self, directory: Path, store: HaltingStore, server: Server) -> None:
        self.directory = directory
        self.store = store
        self.server = server
        self.output = directory / "push.csv"
        self.output.write_text(OLD)

    @property
    def part(self) -> Path:
        return self.directory / "push.csv.part"

    async def start_export(self, *arguments: str, **options: Any) -> asyncio.subprocess.Process:
        env = {**os.environ, "CARILLON_DATA_DIR": str(self.directory), "TERM": "xterm", "COLUMNS": "120"}
        given = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **options}
        arguments = ("1000", *(arguments or ("--output", str(self.output))))
        command = (CARILLON, "audit", "export", *arguments)
        return await asyncio.create_subprocess_exec(*command, env=env, cwd=self.directory, **given)

    async def start_half_written_export(self) -> asyncio.subprocess.Process:
        """Start the command; return it once a part of the file is written."""
        process = await self.start_export()
        await until_holds(lambda: self.part.exists() and self.part.stat().st_size > 0)
        return process

    async def assert_old_export_is_left(self, process: asyncio.subprocess.Process, code: int, why: str) -> None:
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
        assert process.returncode == code
        assert why in errors.decode()
        assert "Traceback" not in errors.decode()
        assert self.output.read_text() == OLD
        assert not self.part.exists()


@pytest.fixture
def heeded_interrupts() -> Iterator[None]:
    """Undo what a shell does for commands in its background: they and the processes that they start ignore SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
async def exported(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> AsyncIterator[ExportedService]:
    store = HaltingStore(clickhouse)
    await log.append([send(1000), started(1000, 1, np.arange(ROWS).tolist(), T0 + 5)])
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path)) as ingestion:
        servicer = AnalyticsServicer(
            *(ingestion, store, ManualClock(T0), ZoneInfo("UTC")),  # type: ignore[arg-type]
            partitions=PARTITIONS,
            ack_delay_ms=0,
        )
        server = serve([f"unix:{tmp_path / SOCKET_NAME}"])
        add_AnalyticsServiceServicer_to_server(servicer, server)
        await server.start()
        yield ExportedService(tmp_path, store, server)
        store.continues.cancel()
        await server.stop(1)


async def test_a_complete_file_replaces_the_older_one(exported: ExportedService) -> None:
    process = await exported.start_half_written_export()
    assert exported.output.read_text() == OLD
    exported.store.continues.set_result(True)
    async with asyncio.timeout(60):
        assert await process.communicate() == (b"", b"")

    assert process.returncode == 0
    assert exported.output.read_text().count("\n") == ROWS + 1
    assert not exported.part.exists()


@pytest.mark.long
async def test_a_service_that_stops_during_the_export(exported: ExportedService) -> None:
    process = await exported.start_half_written_export()
    await exported.server.stop(0)
    await exported.assert_old_export_is_left(process, 1, "no analytics answers")


async def test_a_store_that_fails_during_the_export(exported: ExportedService) -> None:
    process = await exported.start_half_written_export()
    exported.store.continues.set_exception(UnavailableError("ClickHouse: the connection broke"))
    await exported.assert_old_export_is_left(process, 1, "ClickHouse: the connection broke")


@pytest.mark.long
async def test_an_answer_that_ends_early_without_an_error(exported: ExportedService) -> None:
    process = await exported.start_half_written_export()
    exported.store.continues.set_result(False)
    await exported.assert_old_export_is_left(process, 1, f"of {ROWS} rows; try again")


@pytest.mark.usefixtures("heeded_interrupts")
async def test_ctrl_c(exported: ExportedService) -> None:
    process = await exported.start_half_written_export()
    process.send_signal(signal.SIGINT)
    await exported.assert_old_export_is_left(process, 1, "Aborted!")


@pytest.mark.long
async def test_sigkill_leaves_a_part_that_the_next_export_replaces(exported: ExportedService) -> None:
    process = await exported.start_half_written_export()
    process.kill()
    await process.wait()
    assert exported.output.read_text() == OLD
    exported.store.continues.set_result(True)
    assert await (await exported.start_export()).wait() == 0
    assert exported.output.read_text().count("\n") == ROWS + 1
    assert not exported.part.exists()


async def test_a_full_disk(exported: ExportedService) -> None:
    process = await exported.start_half_written_export()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    exported.store.continues.set_result(True)
    await exported.assert_old_export_is_left(process, 1, "push.csv cannot be written: File too large")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a Linux device")
async def test_an_export_to_a_full_disk_fails_with_the_reason(exported: ExportedService) -> None:
    exported.store.continues.set_result(True)
    full = os.open("/dev/full", os.O_WRONLY)
    process = await exported.start_export("--format", "csv", stdout=full)
    _, errors = await process.communicate()
    os.close(full)
    assert process.returncode
    assert b"the output cannot be written: No space left on device" in errors


@pytest.mark.long
async def test_an_output_that_is_no_regular_file_is_refused(exported: ExportedService) -> None:
    pipe = exported.directory / "pipe"
    os.mkfifo(pipe)
    process = await exported.start_export("--output", str(pipe))
    await exported.assert_old_export_is_left(process, 2, "is no regular file")
    assert pipe.is_fifo()


@pytest.mark.long
async def test_a_link_stays_a_link(exported: ExportedService) -> None:
    exported.store.continues.set_result(True)
    link = exported.directory / "link.csv"
    link.symlink_to(exported.output)
    assert await (await exported.start_export("--output", str(link))).wait() == 0
    assert link.is_symlink()
    assert exported.output.read_text().count("\n") == ROWS + 1


async def test_the_progress_bar_of_a_csv_file(exported: ExportedService) -> None:
    terminal, screen = pty.openpty()
    process = await exported.start_export("--output", str(exported.output), stderr=screen)
    os.close(screen)
    os.set_blocking(terminal, False)
    seen = b""

    def percents() -> list[int]:
        nonlocal seen
        with suppress(BlockingIOError, OSError):
            seen += os.read(terminal, 65_536)
        return [int(percent) for percent in re.findall(rb"(\d+)%", seen)]

    await until_holds(lambda: any(0 < percent < 100 for percent in percents()))
    assert max(percents()) < 100
    exported.store.continues.set_result(True)
    assert await process.wait() == 0
    assert percents()[-1] == 100
    assert f"{ROWS} rows".encode() in seen
    os.close(terminal)
