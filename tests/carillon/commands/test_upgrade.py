"""`carillon upgrade --check`: what must be mended before an upgrade, and the order of the roles."""

import re

import pytest
from click.testing import CliRunner

from carillon.commands.status import InstanceStatus
from carillon.commands.upgrade import ORDER, RunningProcess, checked
from carillon.main import main
from carillon.roles import ROLES
from protos.runtime.v1.log_pb2 import Meta
from protos.runtime.v1.processes_pb2 import ProcessFact, ProcessProblem, ProcessStage, ProcessStatus, RoleStatus
from services.domain.role_context import ROLES_WITH_STANDBYS
from services.process.clock import ManualClock
from services.replica.status_board import SILENT_MS, StatusBoard
from testkit.repository import ROOT

NOW_MS = 1_790_000_000_000
_READY = ProcessStage.PROCESS_STAGE_READY


def instance(role: str, state: str) -> InstanceStatus:
    return InstanceStatus(role, 0, state, f"{state}:1", 1 if state == "owner" else None, None, 0.1)


def whole() -> tuple[StatusBoard, list[InstanceStatus]]:
    """Return an installation without a fault."""
    board = StatusBoard(ManualClock(NOW_MS))
    for role in ROLES:
        announce(board, role)
    return board, [instance(role, state) for role in sorted(ROLES_WITH_STANDBYS) for state in ("owner", "standby")]


def announce(
    board: StatusBoard,
    role: str,
    at_ms: int = NOW_MS,
    stage: ProcessStage.ValueType = _READY,
    lag_ms: int = 0,
    problem: str = "",
) -> None:
    problems = [ProcessProblem(part="log", text=problem)] if problem else []
    roles = [RoleStatus(role=role, lag_ms=lag_ms, lag_records=lag_ms)]
    status = ProcessStatus(host=f"host-{role}", version="0.1.0", stage=stage, problems=problems, roles=roles)
    board.apply(ProcessFact(meta=Meta(time_ms=at_ms), process=role, status=status), is_new=False)


def test_an_installation_without_a_fault_may_be_upgraded_in_order() -> None:
    board, instances = whole()
    found = checked(board.processes(), instances, NOW_MS)
    assert found.findings == []
    assert [each.role for each in found.processes] == list(ORDER)
    assert found.processes[0] == RunningProcess("analytics", "host-analytics", "0.1.0", "ready")


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"at_ms": NOW_MS - SILENT_MS - 1}, "targeting on host-targeting: silent"),
        ({"at_ms": NOW_MS + 1, "stage": ProcessStage.PROCESS_STAGE_STARTING}, "targeting on host-targeting: starting"),
        ({"at_ms": NOW_MS + 1, "problem": "is full"}, "targeting on host-targeting: not ready: log: is full"),
        (
            {"at_ms": NOW_MS + 1, "lag_ms": 20_000},
            "targeting on host-targeting: 20000 records behind the log, for 20 s",
        ),
    ],
)
def test_a_process_that_is_not_well_is_named(change: dict[str, int | str], finding: str) -> None:
    board = StatusBoard(ManualClock(NOW_MS))
    for role in ROLES:
        if role != "targeting":
            announce(board, role)
    announce(board, "targeting", **change)  # type: ignore[arg-type]
    assert checked(board.processes(), whole()[1], NOW_MS).findings == [finding]


def test_a_role_without_a_process_an_owner_or_a_standby_is_named() -> None:
    board, instances = whole()
    instances = [
        each for each in instances if each.role != "registry" and (each.role, each.state) != ("delivery", "owner")
    ]
    processes = [each for each in board.processes() if each.id not in ("edge", "console")]
    assert checked(processes, instances, NOW_MS).findings == [
        "edge: no process of this role was heard of",
        "delivery, shard 0: no owner that has caught up",
        "registry, shard 0: no owner that has caught up",
        "registry, shard 0: no standby that has caught up",
    ]


def test_the_order_is_that_of_the_documents() -> None:
    assert sorted(ORDER) == sorted(ROLES)
    page = (ROOT / "docs/operators/running.md").read_text()
    steps = re.findall(r"^\d\. (.*?)[;:.]", page, re.MULTILINE)[:3]
    assert [role for step in steps for role in re.findall(r"\b(?:" + "|".join(ROLES) + r")\b", step)] == list(ORDER)
    cluster = (ROOT / "docs/operators/kubernetes.md").read_text()
    assert f"for role in {' '.join(ORDER)}; do" in cluster
    assert "carillon upgrade --check" in page
    assert "carillon upgrade --check" in cluster


def test_the_command_upgrades_nothing_by_itself_and_needs_a_shared_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CARILLON_KAFKA_BOOTSTRAP", raising=False)
    alone = CliRunner().invoke(main, ["upgrade"])
    assert alone.exit_code == 2
    assert "give --check" in alone.output
    one_process = CliRunner().invoke(main, ["upgrade", "--check"])
    assert one_process.exit_code == 1
    assert "make a backup, stop it" in one_process.output
