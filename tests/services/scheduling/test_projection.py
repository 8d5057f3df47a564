"""Scheduling answers nothing before it has read the log: an unknown claim would let a push be sent a second time."""

from pathlib import Path
from typing import Any

import pytest

from protos.scheduling.v1.scheduling_pb2 import (
    GetClaimRequest,
    GetStoredBytesRequest,
    GetTaskRequest,
    ListTasksRequest,
)
from services.domain.topics import TOPICS
from services.errors import UnavailableError
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.scheduling.projection import SchedulingProjection
from services.scheduling.server import SchedulingServicer
from services.scheduling.settings import SchedulingSettings


async def test_no_question_is_answered_before_the_log_was_read(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    projection = SchedulingProjection(
        SchedulingSettings(data_dir=str(tmp_path)), tmp_path / "state", log, ManualClock(0)
    )
    servicer = SchedulingServicer(projection.follower, projection.committed, projection.lists)
    context: Any = None
    for question in (
        servicer.GetTask(GetTaskRequest(task_key="k"), context),
        servicer.ListTasks(ListTasksRequest(appkeys=["1"], limit=1), context),
        servicer.GetClaim(GetClaimRequest(key=b"k"), context),
        servicer.GetStoredBytes(GetStoredBytesRequest(appkeys=["1"]), context),
    ):
        with pytest.raises(UnavailableError, match="has not caught up with the log"):
            await question
    projection.close()
    await log.close()
