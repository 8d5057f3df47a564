"""Ends of pushes and tasks without a reason in the log are found, and cancels without effect."""

from array import array

import pytest

from protos.delivery.v1.delivery_pb2 import (
    AppOutcomes,
    DeliveryFact,
    Outcomes,
    PushCancelled,
    PushFact,
    PushFailed,
    PushFinished,
    PushStarted,
)
from protos.push.v1.push_pb2 import CancelPush, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta
from protos.scheduling.v1.scheduling_pb2 import (
    CancelTask,
    TaskCancelled,
    TaskCommand,
    TaskExpired,
    TaskFact,
    TaskFailed,
    TaskFellDue,
    TaskScheduled,
    TaskSent,
)
from services.domain.recorded_reasons import AudienceUnresolved
from tests.simulation.model.ends import CancelledPart, cancelled_parts, wrong_push_ends, wrong_task_ends

_SEND = PushCommand(meta=Meta(time_ms=1000), send=SendPush(msgid=7, appkey="app", period_s=30, task_key="task"))
_CANCEL = PushCommand(meta=Meta(time_ms=2000), cancel=CancelPush(msgid=7, appkey="app"))
_CANCEL_OF_ANOTHER_APP = PushCommand(meta=Meta(time_ms=2000), cancel=CancelPush(msgid=7, appkey="other"))
_OVER_MS = 31_000
_UNRESOLVED = PushFailed(reason=str(AudienceUnresolved("targeting does not answer")))

_SCHEDULED = TaskFact(task_key="task", scheduled=TaskScheduled(pushes=[SendPush(msgid=7)]))
_FELL_DUE = TaskFact(task_key="task", fell_due=TaskFellDue())
_CANCEL_TASK = TaskCommand(meta=Meta(event_id=b"id"), task_key="task", cancel=CancelTask())


def _started(count: int = 1, time_ms: int = 1500) -> PushFact:
    return _fact(time_ms, started=PushStarted(count=count))


def _fact(
    time_ms: int,
    *,
    started: PushStarted | None = None,
    cancelled: PushCancelled | None = None,
    finished: PushFinished | None = None,
    failed: PushFailed | None = None,
) -> PushFact:
    return PushFact(
        meta=Meta(time_ms=time_ms),
        msgid=7,
        appkey="app",
        partition=1,
        started=started,
        cancelled=cancelled,
        finished=finished,
        failed=failed,
    )


_CANCELLED = _fact(2500, cancelled=PushCancelled())


@pytest.mark.parametrize(
    ("end", "is_right"),
    [
        (TaskFact(task_key="task", sent=TaskSent()), True),
        (TaskFact(task_key="task", cancelled=TaskCancelled(by_event_id=b"id")), True),
        (TaskFact(task_key="task", cancelled=TaskCancelled(by_event_id=b"another")), False),
        (TaskFact(task_key="unknown", sent=TaskSent()), False),
        (TaskFact(task_key="task", expired=TaskExpired()), False),
        (TaskFact(task_key="task", failed=TaskFailed(reason="no reason")), False),
    ],
)
def test_the_end_of_a_task_has_its_reason_in_the_log(end: TaskFact, is_right: bool) -> None:
    found = list(wrong_task_ends([_CANCEL_TASK], [_SCHEDULED, _FELL_DUE, end], [_SEND]))
    assert (found == []) is is_right


@pytest.mark.parametrize(
    "command", [None, PushCommand(send=SendPush(msgid=8, task_key="task")), PushCommand(send=SendPush(msgid=7))]
)
def test_a_task_that_counts_as_sent_without_its_push_is_found(command: PushCommand | None) -> None:
    sent = TaskFact(task_key="task", sent=TaskSent())
    (found,) = wrong_task_ends([], [_SCHEDULED, sent], [command] if command else [])
    assert found == "task task counts as sent, and its pushes [7] are not in the log"


@pytest.mark.parametrize(
    ("facts", "is_right"),
    [
        ([_started(), _CANCELLED], True),
        ([_fact(2500, cancelled=PushCancelled())], True),
        ([_started(), _fact(_OVER_MS, finished=PushFinished())], True),
        ([_started(), _fact(_OVER_MS - 1, finished=PushFinished())], False),
        ([_fact(_OVER_MS, finished=PushFinished())], False),
        ([_fact(_OVER_MS, failed=_UNRESOLVED)], True),
        ([_fact(_OVER_MS - 1, failed=_UNRESOLVED)], False),
        ([_fact(_OVER_MS, failed=PushFailed(reason="no reason"))], False),
    ],
)
def test_the_end_of_a_push_has_its_reason_in_the_log(facts: list[PushFact], is_right: bool) -> None:
    assert (list(wrong_push_ends([_SEND, _CANCEL], facts)) == []) is is_right


def test_times_of_clocks_that_were_set_are_not_compared() -> None:
    facts = [_fact(_OVER_MS - 1, failed=_UNRESOLVED)]
    assert list(wrong_push_ends([_SEND], facts, tells_time=False)) == []


@pytest.mark.parametrize("commands", [[_SEND], [_SEND, _CANCEL_OF_ANOTHER_APP]])
def test_a_push_that_ends_without_a_cancel_of_its_app_is_found(commands: list[PushCommand]) -> None:
    (found,) = wrong_push_ends(commands, [_started(), _CANCELLED])
    assert found == "push 7 in partition 1 was cancelled, and no cancel of it is in the log"


def test_a_cancel_has_to_end_what_has_started_for_a_device() -> None:
    asked = [_SEND, _CANCEL]
    assert list(cancelled_parts(asked, [_started()], [])) == [CancelledPart(7, 1, 2000, None)]
    assert list(cancelled_parts(asked, [_started(), _CANCELLED], [])) == [CancelledPart(7, 1, 2000, 2500)]
    assert list(cancelled_parts(asked, [_started(time_ms=2200), _CANCELLED], [])) == [CancelledPart(7, 1, 2200, 2500)]
    assert list(cancelled_parts(asked, [_started(count=0)], [])) == []
    assert list(cancelled_parts([_SEND, _CANCEL_OF_ANOTHER_APP], [_started()], [])) == []
    assert list(cancelled_parts([_SEND], [_started()], [])) == []


def test_a_push_with_outcomes_may_have_ended_before_its_cancel() -> None:
    outcomes = AppOutcomes(appkey="app", msgids=array("Q", [7]).tobytes())
    dropped = DeliveryFact(outcomes=Outcomes(apps=[outcomes]))
    assert list(cancelled_parts([_SEND, _CANCEL], [_started()], [dropped])) == []
