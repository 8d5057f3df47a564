"""A process announces its status in the log, from which a status board is filled."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.runtime.v1.processes_pb2 import HeldKeys, ProcessFact, ProcessStatus
from services.domain.topics import PROCESSES, TOPICS
from services.errors import UnavailableError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.process.metrics import APPLIED, ERASURES_APPLIED, EVERY_ROLE, LAG, LAG_SECONDS, OUTCOMES, OWNER, REQUESTS
from services.replica.own_status import MAX_APPS, STATUS_INTERVAL_S, Announcer, OwnStatus, ReportedRole, to_log
from services.replica.status_board import StatusBoard, StatusBoardFollower
from testkit.services import started, stop
from testkit.waiting import run_ready_tasks, until_holds

START_MS = 1_790_000_000_000


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    yield log
    await log.close()


async def test_a_board_learns_from_the_log_what_a_process_announced_and_that_it_left(log: SqliteLog) -> None:
    clock = ManualClock(START_MS)
    announcer = Announcer(lambda: {"a": ProcessStatus(host="h")}, to_log(log), clock, "edge")
    announcing = await started(announcer)
    board = StatusBoard(clock)
    following = await started(StatusBoardFollower(log, board))
    await until_holds(lambda: [each.heard_ms for each in board.processes()] == [START_MS])
    clock.move(STATUS_INTERVAL_S)
    await until_holds(lambda: [each.told_ms for each in board.processes()] == [START_MS + STATUS_INTERVAL_S * 1000])
    await log.append([NewRecord(PROCESSES.name, 0, b"b", b"\xff")])
    await stop([announcing])
    await until_holds(lambda: not board.processes())
    await stop([following])


async def test_a_process_goes_on_while_it_cannot_announce_itself() -> None:
    clock, published = ManualClock(0), []

    async def publish(fact: ProcessFact) -> None:
        published.append(fact)
        if len(published) < 3:
            raise UnavailableError("the log is away")

    announcing = await started(Announcer(lambda: {"a": ProcessStatus()}, publish, clock, "edge"))
    for count in (1, 2, 3):
        await run_ready_tasks()
        assert len(published) == count
        clock.move(STATUS_INTERVAL_S)
    await stop([announcing])
    assert published[-1].HasField("left")
    assert len({fact.meta.event_id for fact in published}) == len(published)


def test_the_status_is_read_from_the_metrics_of_the_roles() -> None:
    REQUESTS.labels("v2", "/v2/push", 0).inc(3)
    REQUESTS.labels("v2", "/v2/tags", 401).inc(2)
    devices = {f"app-{number}": number for number in range(MAX_APPS + 5)}
    roles = [
        ReportedRole("edge", devices=lambda: devices),
        ReportedRole("status-test", 1, 4, ["status-test follower"]),
        ReportedRole("status-standby"),
    ]
    held = HeldKeys(secrets=[b"fingerprint"])
    own = OwnStatus(roles, START_MS, lambda: "ready", lambda: {"log": "is away"}, held_keys=lambda: held)
    before = own.read()
    REQUESTS.labels("v2", "/v2/push", 0).inc()
    OUTCOMES.labels("sent").inc(7)
    OUTCOMES.labels("shown").inc(100)
    for name, count in (("status-test", 20), ("status-test follower", 3), ("another", 50)):
        APPLIED.labels(name, "topic").inc(count)
        LAG.labels(name, "topic").set(count)
        LAG_SECONDS.labels(name).set(count / 10)
    OWNER.labels("status-test", "1").set(1)
    OWNER.labels("status-standby", "0").set(0)
    status = own.read()
    assert (status.host, status.started_ms, status.stage) == (before.host, START_MS, 2)
    assert [(problem.part, problem.text) for problem in status.problems] == [("log", "is away")]
    edge, role, standby = status.roles
    assert edge.work - before.roles[0].work == 1
    assert (role.shard, role.shards, role.stands_by, standby.stands_by) == (1, 4, False, True)
    assert (role.lag_records, role.lag_ms, role.work) == (23, 2000, 23)
    assert status.held_keys == held
    assert status.counts.sent - before.counts.sent == 7
    assert {each.result for each in status.counts.requests} >= {0, 401}
    assert len(status.devices) == MAX_APPS
    assert (status.devices[0].appkey, status.devices[0].count) == (f"app-{MAX_APPS + 4}", MAX_APPS + 4)


def test_a_status_fits_into_a_record_whatever_is_wrong() -> None:
    own = OwnStatus([], 0, lambda: "starting", lambda: {"log": "x" * 10_000})
    assert len(own.read().SerializeToString()) < 1_000


def test_a_role_has_applied_as_many_erasures_as_its_slowest_part() -> None:
    ERASURES_APPLIED.clear()  # of the roles of former tests
    for role, part, count in (
        (EVERY_ROLE, "keys", 9),
        ("cook", "state", 7),
        ("cook", "stubs", 5),
        ("waiter", "state", 3),
    ):
        ERASURES_APPLIED.labels(role, part).set(count)
    try:
        roles = [ReportedRole(name) for name in ("cook", "waiter", "guest")]
        status = OwnStatus(roles, START_MS, lambda: "ready", dict).read()
        assert [role.erasures_until for role in status.roles] == [5, 3, 9]
    finally:
        ERASURES_APPLIED.clear()
