"""Writes announcements of processes, which the console of a test reads."""

import re
from html import unescape

from protos.runtime.v1.log_pb2 import Meta
from protos.runtime.v1.processes_pb2 import ProcessFact, ProcessLeft, ProcessStage, ProcessStatus, RoleStatus
from services.domain.call_permissions import EVERY_ROLE
from services.replica.status_board import SILENT_MS
from tests.console.conftest import START_MS, ConsoleInstallation

READY = ProcessStage.PROCESS_STAGE_READY


def words_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def status_of(role: str, **changes: object) -> ProcessStatus:
    lag = RoleStatus(role=role, shards=1, work=int(changes.pop("work", 0)))  # type: ignore[call-overload]
    status = ProcessStatus(host=f"{role}-host", version="9.9", started_ms=START_MS, stage=READY, roles=[lag])
    status.MergeFrom(ProcessStatus(**changes))  # type: ignore[arg-type]
    return status


def announce(console: ConsoleInstallation, /, **statuses: ProcessStatus | None) -> None:
    """Have the processes of these names announce their status, or None that they have left."""
    meta = Meta(time_ms=console.clock.now_ms())
    for process, status in statuses.items():
        left = None if status else ProcessLeft()
        console.board.apply(ProcessFact(meta=meta, process=process, status=status, left=left))


def everything_works(console: ConsoleInstallation, **others: ProcessStatus) -> None:
    """Have one process of each role announce itself, and these others or with this status."""
    announce(console, **({role: status_of(role) for role in EVERY_ROLE} | others))


def some_time_later(console: ConsoleInstallation) -> None:
    """Let the time pass after which a process that has not announced itself counts as missing."""
    console.clock.move(SILENT_MS / 1000 + 1)
