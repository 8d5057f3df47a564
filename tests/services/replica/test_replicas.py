"""How many edges and gateways share a limit follows what they announce."""

from pathlib import Path

from protos.runtime.v1.log_pb2 import Meta
from protos.runtime.v1.processes_pb2 import ProcessFact, ProcessLeft, ProcessStatus, RoleStatus
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.replica.own_status import to_log
from services.replica.status_board import SILENT_MS, Replicas, StatusBoard, StatusBoardFollower
from testkit.services import running_services
from testkit.waiting import until_holds

START_MS = 1_790_000_000_000


def announced(process: str, clock: ManualClock, instance: str = "", role: str = "edge") -> ProcessFact:
    status = ProcessStatus(roles=[RoleStatus(role=role)], instance=instance)
    return ProcessFact(meta=Meta(time_ms=clock.now_ms()), process=process, status=status)


def test_without_a_board_a_process_is_the_only_one() -> None:
    alone = Replicas(None, "edge")
    assert (alone.processes(), alone.instances()) == (1, 1)


def test_workers_are_processes_of_one_instance() -> None:
    clock = ManualClock(START_MS)
    board = StatusBoard(clock)
    edges = Replicas(board, "edge")
    assert (edges.processes(), edges.instances()) == (1, 1)
    for process, instance in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("c", "")):
        board.apply(announced(process, clock, instance))
    board.apply(announced("g", clock, role="gateway"))
    assert (edges.processes(), edges.instances()) == (4, 3)
    board.apply(ProcessFact(meta=Meta(time_ms=clock.now_ms()), process="c", left=ProcessLeft()))
    assert (edges.processes(), edges.instances()) == (3, 2)


def test_a_killed_edge_is_gone_soon_but_nobody_is_while_the_log_is_away() -> None:
    clock = ManualClock(START_MS)
    board = StatusBoard(clock)
    edges = Replicas(board, "edge")
    for process in ("a", "b"):
        board.apply(announced(process, clock))
    clock.move(10 * SILENT_MS / 1000)
    assert edges.instances() == 2
    board.apply(announced("a", clock))
    assert edges.instances() == 1


async def test_the_count_follows_the_log(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    await to_log(log)(announced("a", clock))
    board = StatusBoard(clock)
    edges = Replicas(board, "edge")
    async with running_services([StatusBoardFollower(log, board)]):
        for count in range(1, 5):
            await to_log(log)(announced(f"edge {count}", clock))
            await until_holds(lambda count=count: edges.instances() == count + 1)  # type: ignore[misc]
    await log.close()
