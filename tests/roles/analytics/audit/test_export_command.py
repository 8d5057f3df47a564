"""`carillon audit export` as a process: its progress, and the files that it leaves when it ends early."""

import asyncio
import os
import pty
import re
import resource
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from analytics.server import AnalyticsServicer
from analytics.store.clickhouse import ClickHouse
from carillon.commands.role_calls import SOCKET_NAME
from protos.analytics.v1.analytics_pb2_grpc import add_AnalyticsServiceServicer_to_server
from services.runtime.errors import UnavailableError
from services.runtime.log.sqlite import SqliteLog
from services.runtime.process.clock import ManualClock
from services.runtime.rpc.server import Server, serve
from testkit.installation.processes import CARILLON
from tests.roles.analytics.records import PARTITIONS, T0, send, started
from tests.roles.analytics.service import new_ingestion, running_ingestion

ROWS = 20_000
OLD = "an older export"


class Halting:
    """A store whose file stops after its first piece until `goes_on` has a result: continue, end, or an exception."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self.goes_on: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clickhouse, name)

    @asynccontextmanager
    async def file(self, sql: str, parameters: Mapping[str, Any], file_format: str) -> AsyncIterator[Any]:
        async with self._clickhouse.file(sql, parameters, file_format) as pieces:
            yield self._halting(pieces)

    async def _halting(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for piece in pieces:
            yield piece
            if not await asyncio.shield(self.goes_on):
                return


class Exporting:
    """A service with a push to many devices, and an output file with an older export."""

    def __init__(self, directory: Path, store: Halting, server: Server) -> None:
        self.directory = directory
        self.store = store
        self.server = server
        self.output = directory / "push.csv"
        self.output.write_text(OLD)

    @property
    def part(self) -> Path:
        return self.directory / "push.csv.part"

    async def begin(self, *arguments: str, **options: Any) -> asyncio.subprocess.Process:
        env = {**os.environ, "CARILLON_DATA_DIR": str(self.directory), "TERM": "xterm", "COLUMNS": "120"}
        given = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **options}
        arguments = ("1000", *(arguments or ("--output", str(self.output))))
        command = (CARILLON, "audit", "export", *arguments)
        return await asyncio.create_subprocess_exec(*command, env=env, cwd=self.directory, **given)

    async def half_written(self) -> asyncio.subprocess.Process:
        """Start the command; return it once a part of the file is written."""
        process = await self.begin()
        await until(lambda: self.part.exists() and self.part.stat().st_size > 0)
        return process

    async def assert_nothing_is_left(self, process: asyncio.subprocess.Process, code: int, why: str) -> None:
        async with asyncio.timeout(30):
            _, errors = await process.communicate()
        assert process.returncode == code
        assert why in errors.decode()
        assert "Traceback" not in errors.decode()
        assert self.output.read_text() == OLD
        assert not self.part.exists()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture
async def exporting(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> AsyncIterator[Exporting]:
    store = Halting(clickhouse)
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
        yield Exporting(tmp_path, store, server)
        store.goes_on.cancel()
        await server.stop(1)


async def test_a_complete_file_replaces_the_older_one(exporting: Exporting) -> None:
    process = await exporting.half_written()
    assert exporting.output.read_text() == OLD
    exporting.store.goes_on.set_result(True)
    async with asyncio.timeout(30):
        assert await process.communicate() == (b"", b"")

    assert process.returncode == 0
    assert exporting.output.read_text().count("\n") == ROWS + 1
    assert not exporting.part.exists()


async def test_a_service_that_stops_during_the_export(exporting: Exporting) -> None:
    process = await exporting.half_written()
    await exporting.server.stop(0)
    await exporting.assert_nothing_is_left(process, 1, "no analytics answers")


async def test_a_store_that_fails_during_the_export(exporting: Exporting) -> None:
    process = await exporting.half_written()
    exporting.store.goes_on.set_exception(UnavailableError("ClickHouse: the connection broke"))
    await exporting.assert_nothing_is_left(process, 1, "ClickHouse: the connection broke")


async def test_an_answer_that_ends_early_without_an_error(exporting: Exporting) -> None:
    process = await exporting.half_written()
    exporting.store.goes_on.set_result(False)
    await exporting.assert_nothing_is_left(process, 1, f"of {ROWS} rows; try again")


async def test_ctrl_c(exporting: Exporting) -> None:
    process = await exporting.half_written()
    process.send_signal(signal.SIGINT)
    await exporting.assert_nothing_is_left(process, 1, "Aborted!")


async def test_sigkill_leaves_a_part_that_the_next_export_replaces(exporting: Exporting) -> None:
    process = await exporting.half_written()
    process.kill()
    await process.wait()
    assert exporting.output.read_text() == OLD
    exporting.store.goes_on.set_result(True)
    assert await (await exporting.begin()).wait() == 0
    assert exporting.output.read_text().count("\n") == ROWS + 1
    assert not exporting.part.exists()


async def test_a_full_disk(exporting: Exporting) -> None:
    exporting.store.goes_on.set_result(True)

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    process = await exporting.begin("--output", str(exporting.output), preexec_fn=little)
    await exporting.assert_nothing_is_left(process, 1, "push.csv cannot be written: File too large")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a Linux device")
async def test_a_full_disk_behind_the_standard_output(exporting: Exporting) -> None:
    exporting.store.goes_on.set_result(True)
    full = os.open("/dev/full", os.O_WRONLY)
    process = await exporting.begin("--format", "csv", stdout=full)
    _, errors = await process.communicate()
    os.close(full)
    assert process.returncode
    assert b"the output cannot be written: No space left on device" in errors


async def test_an_output_that_is_no_regular_file_is_refused(exporting: Exporting) -> None:
    pipe = exporting.directory / "pipe"
    os.mkfifo(pipe)
    process = await exporting.begin("--output", str(pipe))
    await exporting.assert_nothing_is_left(process, 2, "is no regular file")
    assert pipe.is_fifo()


async def test_a_link_stays_a_link(exporting: Exporting) -> None:
    exporting.store.goes_on.set_result(True)
    link = exporting.directory / "link.csv"
    link.symlink_to(exporting.output)
    assert await (await exporting.begin("--output", str(link))).wait() == 0
    assert link.is_symlink()
    assert exporting.output.read_text().count("\n") == ROWS + 1


async def test_the_progress_bar_of_a_csv_file(exporting: Exporting) -> None:
    terminal, screen = pty.openpty()
    process = await exporting.begin("--output", str(exporting.output), stderr=screen)
    os.close(screen)
    os.set_blocking(terminal, False)
    seen = b""

    def percents() -> list[int]:
        nonlocal seen
        with suppress(BlockingIOError, OSError):
            seen += os.read(terminal, 65_536)
        return [int(percent) for percent in re.findall(rb"(\d+)%", seen)]

    await until(lambda: any(0 < percent < 100 for percent in percents()))
    assert max(percents()) < 100
    exporting.store.goes_on.set_result(True)
    assert await process.wait() == 0
    assert percents()[-1] == 100
    assert f"{ROWS} rows".encode() in seen
    os.close(terminal)
