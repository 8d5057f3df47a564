"""Decisions about tasks: given facts, when a command, then facts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from protos.push.v1.push_pb2 import SendPush
from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import (
    CancelTask,
    CreateTask,
    TaskCancelled,
    TaskCommand,
    TaskFact,
    TaskFellDue,
    TaskScheduled,
    TaskSent,
)
from services.replica.sqlite_store import SqliteStore
from services.scheduling.decide import decide
from services.scheduling.state import apply
from services.scheduling.store import DDL, TaskTable
from tests.services.scheduling.conftest import APP, OTHER_APP, push

SCHEDULED = TaskFact(task_key="t", scheduled=TaskScheduled(pushes=[push(1)], due_ms=9, created_ms=5))
FELL_DUE = TaskFact(task_key="t", fell_due=TaskFellDue())
SENT = TaskFact(task_key="t", sent=TaskSent())
CANCELLED = TaskFact(task_key="t", cancelled=TaskCancelled(by_event_id=b"first"))
CREATE = TaskCommand(meta=Meta(time_ms=5), task_key="t", create=CreateTask(pushes=[push(1)], due_ms=9))


def cancel(appkey: str) -> TaskCommand:
    return TaskCommand(meta=Meta(event_id=b"second"), task_key="t", cancel=CancelTask(appkeys=[appkey]))


@pytest.mark.parametrize(
    ("given", "when", "then"),
    [
        ([], CREATE, SCHEDULED),
        ([SCHEDULED], CREATE, None),
        ([SCHEDULED], cancel(APP), TaskFact(task_key="t", cancelled=TaskCancelled(by_event_id=b"second"))),
        ([], cancel(APP), None),
        ([SCHEDULED], cancel(OTHER_APP), None),
        ([SCHEDULED, CANCELLED], cancel(APP), None),
        ([SCHEDULED, FELL_DUE], cancel(APP), None),
        ([SCHEDULED, FELL_DUE, SENT], cancel(APP), None),
        ([SCHEDULED], TaskCommand(task_key="t"), None),
    ],
    ids=[
        "create", "create again", "cancel", "cancel nothing", "cancel another app's", "cancel twice",
        "cancel after falling due", "cancel after sending", "a newer writer's command",
    ],
)  # fmt: skip
def test_a_command_after_these_facts_gives_this_fact_or_none(
    tmp_path: Path, given: Sequence[TaskFact], when: TaskCommand, then: TaskFact | None
) -> None:
    store = SqliteStore(tmp_path / "tasks.sqlite", DDL)
    tasks = TaskTable(store.rows)
    for fact in given:
        apply(tasks, 0, fact)

    assert decide(when, tasks.find("t")) == then


@pytest.mark.parametrize("pushes", [[], [SendPush(msgid=1, appkey=APP)]], ids=["no push", "no audience"])
def test_an_incomplete_create_command_is_an_error(pushes: list[SendPush]) -> None:
    with pytest.raises(ValueError, match=r"at least one push|has no audience"):
        decide(TaskCommand(task_key="t", create=CreateTask(pushes=pushes)), None)


@pytest.mark.parametrize(
    "repeated", [SCHEDULED, FELL_DUE, CANCELLED, TaskFact(task_key="t")], ids=["scheduled", "due", "cancelled", "newer"]
)
def test_a_repeated_or_unknown_fact_does_not_bring_a_sent_task_back(tmp_path: Path, repeated: TaskFact) -> None:
    store = SqliteStore(tmp_path / "tasks.sqlite", DDL)
    tasks = TaskTable(store.rows)
    for fact in (SCHEDULED, FELL_DUE, SENT):
        apply(tasks, 0, fact)
    before = store.digest()

    apply(tasks, 0, repeated)

    assert store.digest() == before
