"""Calls of a child process to its parent: appended records, announced processes, and operations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from carillon.children.parent import Announcements, LogWatch, ParentLog, ParentServicer, ParentStatusFollower
from protos.runtime.v1.log_pb2 import Meta
from protos.runtime.v1.parent_pb2 import AskOperationsRequest
from protos.runtime.v1.parent_pb2_grpc import ParentServiceStub, add_ParentServiceServicer_to_server
from protos.runtime.v1.processes_pb2 import ProcessFact, ProcessLeft, ProcessStatus
from services.domain.topics import APPS, PUSH_COMMANDS, TOPICS
from services.errors import PermissionDeniedError, UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.process.clock import ManualClock
from services.replica.status_board import StatusBoard
from testkit.waiting import run_ready_tasks, until_holds

APPS_0 = Partition(APPS.name, 0)
NEVER_S = 3600.0
BOUND_S = 10.0


class Parent:
    """A parent with an embedded log; calls fail while `is_away` is set."""

    def __init__(self, path: Path) -> None:
        self.log = SqliteLog(path, TOPICS)
        self.announcements = Announcements()
        self.clock = ManualClock(1_000_000)
        self.asked: list[str] = []
        self.appended_by_child = {APPS_0.topic}
        self._server = LocalServer()
        self.serve(self._server)

    def serve(self, server: LocalServer) -> None:
        servicer = ParentServicer(
            self.log, self.announcements, self._operations, lambda topic: topic in self.appended_by_child
        )
        add_ParentServiceServicer_to_server(servicer, server)  # type: ignore[arg-type]

    @property
    def channel(self) -> Channel:
        return self._server.channel()

    async def _operations(self, path: str) -> tuple[int, str, bytes]:
        self.asked.append(path)
        return 503, "application/json", b"{}"

    async def announce(self, process: str, **fact: Any) -> None:
        meta = Meta(time_ms=self.clock.now_ms())
        await self.announcements.publish(ProcessFact(meta=meta, process=process, **fact))


@pytest.fixture
async def parent(tmp_path: Path) -> AsyncIterator[Parent]:
    parent = Parent(tmp_path / "events.db")
    yield parent
    await parent.log.close()


@pytest.fixture
async def log(parent: Parent, tmp_path: Path) -> AsyncIterator[ParentLog]:
    """The log of a child that looks for new records by itself once an hour."""
    log = ParentLog(SqliteLog(tmp_path / "events.db", TOPICS, read_only=True, poll_s=NEVER_S), parent.channel)
    yield log
    await log.close()


@asynccontextmanager
async def running(service: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(service.run(asyncio.Event()))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def record(value: bytes) -> NewRecord:
    return NewRecord(*APPS_0, b"key", value)


async def test_readers_of_a_child_see_what_the_parent_appends_and_what_the_child_appends(
    parent: Parent, log: ParentLog
) -> None:
    reader = await log.open({APPS_0: 0})
    async with asyncio.timeout(BOUND_S), running(LogWatch(log, [APPS_0], parent.channel, parent.clock)):
        for number in range(3):
            await parent.log.append([record(b"of the parent"), NewRecord(PUSH_COMMANDS.name, 0, b"", b"")])
            assert [each.value for each in await reader.read()] == [b"of the parent"]
            assert await log.append([record(b"of the child")]) == [2 * number + 1]
            assert [each.value for each in await reader.read()] == [b"of the child"]
    await log.check_writable()


async def test_a_watch_that_ends_begins_again(parent: Parent, log: ParentLog) -> None:
    reader = await log.open({APPS_0: 0})
    away = LocalServer()
    async with asyncio.timeout(BOUND_S), running(LogWatch(log, [APPS_0], away.channel(), parent.clock)):
        await run_ready_tasks()
        await parent.log.append([record(b"unseen")])
        parent.serve(away)
        parent.clock.move(1)
        assert [each.value for each in await reader.read()] == [b"unseen"]


async def test_a_log_whose_parent_is_away_cannot_be_written(tmp_path: Path, parent: Parent) -> None:
    reads = SqliteLog(tmp_path / "events.db", TOPICS, read_only=True)
    log = ParentLog(reads, LocalServer().channel())
    with pytest.raises(UnavailableError):
        await log.append([record(b"lost")])
    with pytest.raises(UnavailableError):
        await log.check_writable()
    assert await log.ends([APPS_0]) == {APPS_0: 0}
    await log.close()


async def test_the_board_of_a_child_has_what_was_announced_before_and_after_its_start(parent: Parent) -> None:
    board = StatusBoard(parent.clock)
    await parent.announce("up", status=ProcessStatus(connected_devices=7))
    async with running(ParentStatusFollower(board, parent.channel, parent.clock)):
        await until_holds(lambda: board.rate("devices") == 7)
        parent.clock.move(5)
        await parent.announce("up", status=ProcessStatus(connected_devices=8))
        await parent.announce("analytics", status=ProcessStatus())
        await until_holds(lambda: len(board.processes()) == 2 and board.rate("devices") == 8)
        await parent.announce("analytics", left=ProcessLeft())
        await until_holds(lambda: [each.id for each in board.processes()] == ["up"])


async def test_operations_are_answered_by_the_parent(parent: Parent) -> None:
    answer = await ParentServiceStub(parent.channel).AskOperations(AskOperationsRequest(path="/healthz"))
    assert (answer.status, answer.content_type, answer.body) == (503, "application/json", b"{}")
    assert parent.asked == ["/healthz"]


async def test_a_child_appends_to_the_topics_that_it_may_and_to_no_others(parent: Parent, log: ParentLog) -> None:
    """What the parent signs it signs for its own roles alone."""
    await log.append([record(b"1")])
    parent.appended_by_child.clear()
    with pytest.raises(PermissionDeniedError, match="may not append to the topic apps"):
        await log.append([record(b"2")])
    assert (await parent.log.ends([APPS_0]))[APPS_0] == 1
