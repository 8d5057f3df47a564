"""The sender of tasks that fell due: no app's tasks are forgotten at the end of a tenure or among many retries."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from protos.push.v1.push_pb2 import Audience, SendPush, Tokens
from protos.scheduling.v1.scheduling_pb2 import TaskFact, TaskScheduled
from services.domain.command_writer import Command
from services.domain.token_resolver import ResolvedAudience
from services.errors import CarillonError, PermissionDeniedError, UnavailableError
from services.process.clock import ManualClock
from services.replica.store import Fact
from services.replica.tenure import Tenure
from services.scheduling import app_sender
from services.scheduling.app_sender import RETRY_MS, AppTaskSender
from services.scheduling.state import Status, StoredTask
from services.scheduling.store import FiringOrder
from services.scheduling.task_sender import TaskSender
from testkit.services import running_services
from testkit.waiting import until_holds

APP = "1000000001"


class Due:
    """An app's tasks that fell due, by task key with their due times; what the sender writes removes them.

    It stands for everything that the sender calls. `refuses`: the log refuses so many appends. `errors`: the registry's
    answers for these tasks. `ended`: how tasks ended, by their keys.
    """

    def __init__(self, **due_ms: int) -> None:
        self.due_ms = due_ms
        self.refuses = 0
        self.errors: dict[str, Exception] = {}
        self.ended: dict[str, str] = {}
        self.look_ups = 0
        self.tenure = Tenure(None)

    async def query(self, query: Callable[..., Any], *arguments: Any) -> Any:
        return query(*arguments)

    def apps_with(self, status: Status) -> list[str]:
        return [APP]

    def apps_of(self, task_keys: Sequence[str]) -> list[str]:
        return [APP]

    def fell_due(self, appkey: str, after: FiringOrder, limit: int) -> list[FiringOrder]:
        self.look_ups += 1
        places = (FiringOrder(due_ms, key) for key, due_ms in self.due_ms.items())
        return sorted(place for place in places if place > after)[:limit]

    def find_all(self, task_keys: Sequence[str]) -> list[StoredTask]:
        return [StoredTask(key, 0, Status.FELL_DUE, _scheduled(key), b"") for key in task_keys]

    async def resolve(self, appkey: str, audience: Audience) -> ResolvedAudience:
        if error := self.errors.get(audience.tokens.tokens[0]):
            raise error
        return ResolvedAudience(audience)

    async def draft_of(self, task: StoredTask) -> str:
        """Return no draft: no task needs an approval."""
        return ""

    async def take(self, appkey: str, size: int) -> None:
        """Delivery has capacity."""

    async def append(self, commands: Sequence[Command]) -> None:
        if self.refuses:
            self.refuses -= 1
            raise UnavailableError("the log is away")

    async def put(self, facts: Sequence[Fact], size: int) -> None:
        for fact in facts:
            del self.due_ms[fact.message.task_key]
            self.ended[fact.message.task_key] = fact.message.WhichOneof("fact")


def _scheduled(task_key: str) -> TaskFact:
    """Return the fact of a task whose only token is its key."""
    push = SendPush(msgid=1, appkey=APP, audience=Audience(tokens=Tokens(tokens=[task_key])), period_s=60)
    return TaskFact(scheduled=TaskScheduled(pushes=[push]))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("steps", range(6))
async def test_tasks_that_fall_due_as_a_tenure_ends_are_looked_up_in_the_next_one_alone(steps: int) -> None:
    due: Any = Due()
    sender = TaskSender(due, due, due, due, due, due, ManualClock(0))
    due.tenure.begin()
    async with running_services([sender]):
        await settle()
        assert due.look_ups == 1
        due.tenure.end()
        for _ in range(steps):
            await asyncio.sleep(0)
        await sender.send(["task"])
        await settle()
        assert due.look_ups == 1
        due.tenure.begin()
        await settle()
        assert due.look_ups == 2


async def test_an_app_whose_sender_was_cancelled_before_its_first_step_is_looked_up_again() -> None:
    due: Any = Due()
    sender = TaskSender(due, due, due, due, due, due, ManualClock(0))
    due.tenure.begin()
    async with running_services([sender]):
        await settle()
        await sender.send(["task"])
        for task in sender._sending:
            task.cancel()
        await settle()
        await sender.send(["task"])
        await settle()
        assert due.look_ups == 2


async def test_a_task_that_was_left_out_among_too_many_retries_is_sent_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app_sender, "MAX_RETRIES", 1)
    clock = ManualClock(0)
    due: Any = Due(later=2)
    due.refuses = 1
    sender = AppTaskSender(due, due, due, due, due, due, due, clock, APP)
    sender.wake_up()
    running = asyncio.create_task(sender.run())
    await until_holds(lambda: not due.refuses)
    due.due_ms["earlier"] = 1
    sender.wake_up()
    await settle()
    clock.move(RETRY_MS / 1000)
    await asyncio.wait_for(running, 60)
    assert due.due_ms == {}


async def move(clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.move(1)
        await settle()


@pytest.mark.parametrize(
    ("error", "lasts_s"),
    [(CarillonError("internal error"), 300), (PermissionDeniedError("another list of shards"), 1200)],
)
async def test_tasks_that_fall_due_while_the_registry_answers_with_errors_are_sent_afterwards(
    error: Exception, lasts_s: int
) -> None:
    clock = ManualClock(0)
    due: Any = Due(first=1)
    due.errors = {"first": error, "second": error}
    sender = AppTaskSender(due, due, due, due, due, due, due, clock, APP)
    sender.wake_up()
    running = asyncio.create_task(sender.run())
    await move(clock, lasts_s - 30)
    due.due_ms["second"] = 2
    sender.wake_up()
    await move(clock, 30)
    assert due.ended == {}
    due.errors = {}
    await move(clock, 60)
    assert due.ended == {"first": "sent", "second": "sent"}
    await asyncio.wait_for(running, 60)


async def test_pages_of_tasks_that_always_fail_delay_the_next_page_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_sender, "CONCURRENT_TASKS", 2)
    clock = ManualClock(0)
    broken = [f"broken {n}" for n in range(6)]
    due: Any = Due(**dict.fromkeys(broken, 1), works=2)
    due.errors = dict.fromkeys(broken, CarillonError("internal error"))
    sender = AppTaskSender(due, due, due, due, due, due, due, clock, APP)
    sender.wake_up()
    running = asyncio.create_task(sender.run())
    await move(clock, 10)
    assert due.ended == {"works": "sent"}
    await move(clock, 900)
    assert due.ended == {"works": "sent", **dict.fromkeys(broken, "failed")}
    await asyncio.wait_for(running, 60)
