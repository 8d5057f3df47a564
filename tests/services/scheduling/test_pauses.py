"""Tasks that fall due while one of their apps is paused wait, and are sent once after the resume or expire."""

import pytest

from protos.registry.v1.apps_pb2 import App, AppFact, InstallationPause, Pause
from protos.runtime.v1.log_pb2 import Position
from protos.scheduling.v1.scheduling_pb2 import CreateTask, TaskCommand
from services.domain.apps import INSTALLATION_PAUSE_KEY
from services.domain.topics import APPS
from services.log.port import NewRecord
from services.scheduling import timer
from testkit.waiting import run_ready_tasks
from tests.services.scheduling.conftest import APP, OTHER_APP, SchedulingHarness, push
from tests.services.scheduling.test_timer import assert_replays, assert_sent_once, is_fact


async def set_pause(harness: SchedulingHarness, appkey: str | None, pause: Pause | None) -> None:
    """Pause or resume the app, or all apps, as the registry does; return when scheduling has applied it."""
    if appkey is None:
        key, fact = INSTALLATION_PAUSE_KEY, AppFact(installation_pause=InstallationPause(pause=pause))
    else:
        key, fact = appkey.encode(), AppFact(app=App(appkey=appkey, pause=pause))
    (offset,) = await harness.log.append([NewRecord(APPS.name, 0, key, fact.SerializeToString())])
    position = Position(topic=APPS.name, partition=0, offset=offset)
    assert not await harness.peers.roles_behind(["scheduling"], position)


async def pause(harness: SchedulingHarness, appkey: str | None = APP) -> None:
    await set_pause(harness, appkey, Pause(since_ms=harness.clock.now_ms()))


async def resume(harness: SchedulingHarness, appkey: str | None = APP) -> None:
    await set_pause(harness, appkey, None)


async def until_fact(harness: SchedulingHarness, kind: str, key: str) -> None:
    while key not in [fact.task_key for fact in await harness.facts(kind)]:
        await run_ready_tasks()


@pytest.mark.parametrize("appkey", [APP, None], ids=["one app", "all apps"])
async def test_a_task_waits_for_the_resume_and_is_sent_with_what_is_left_of_its_time_to_live(
    harness: SchedulingHarness, appkey: str | None
) -> None:
    async with harness.running():
        await pause(harness, appkey)
        await harness.create("t", push(1), in_s=10)
        harness.clock.move(10)
        await until_fact(harness, "paused", "t")
        harness.clock.move(45)
        await run_ready_tasks()
        assert await harness.sent_pushes() == []
        assert await harness.status("t") == "UNSENT"
        await resume(harness, appkey)
        await harness.until_sent(1)
        await assert_sent_once(harness, "t", 1)
        (command,) = await harness.sent_pushes()
        assert command.send.period_s == 15
    await assert_replays(harness)


async def test_a_task_whose_time_to_live_ends_during_the_pause_is_not_sent(harness: SchedulingHarness) -> None:
    async with harness.running():
        await pause(harness)
        await harness.create("t", push(1), in_s=10)
        await harness.create("two", push(2), push(3), in_s=11)
        harness.clock.move(11)
        await until_fact(harness, "paused", "two")
        harness.clock.move(59)
        while await harness.status("t") != "EXPIRED":
            await run_ready_tasks()
        assert await harness.status("two") == "UNSENT"
        await harness.cancel("t")
        assert await harness.status("t") == "EXPIRED"
        await resume(harness)
        await harness.until_sent(1)
        await assert_sent_once(harness, "two", 2, 3)
        assert {command.send.msgid for command in await harness.sent_pushes()} == {2, 3}
    await assert_replays(harness)


async def test_a_waiting_task_can_be_cancelled(harness: SchedulingHarness) -> None:
    async with harness.running():
        await pause(harness)
        await harness.create("t", push(1), in_s=1)
        harness.clock.move(1)
        await until_fact(harness, "paused", "t")
        await harness.cancel("t")
        assert await harness.status("t") == "CANCELLED"
        await resume(harness)
        await harness.create("witness", push(2), in_s=0)
        await harness.until_sent(1)
        assert [command.send.msgid for command in await harness.sent_pushes()] == [2]
    await assert_replays(harness)


async def test_the_tasks_of_a_paused_app_delay_no_other_apps_tasks(
    harness: SchedulingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more waiting tasks than one page holds, all due before the other app's task."""
    monkeypatch.setattr(timer, "PAGE", 5)
    async with harness.running():
        await pause(harness)
        for n in range(12):
            await harness.create(f"t{n:02}", push(100 + n), in_s=1)
        await harness.create("both", push(200), push(201, OTHER_APP), in_s=1)
        await harness.create("other", push(1, OTHER_APP), in_s=2)
        harness.clock.move(2)
        await harness.until_sent(1)
        await assert_other_is_alone(harness)
        await harness.create("another", push(2, OTHER_APP), in_s=0)
        await harness.until_sent(2)
        await resume(harness)
        await harness.until_sent(2 + 13)
        msgids = [command.send.msgid for command in await harness.sent_pushes()]
        assert sorted(msgids) == [1, 2, *range(100, 112), 200, 201]
    await assert_replays(harness)


async def assert_other_is_alone(harness: SchedulingHarness) -> None:
    status = await harness.status("other", OTHER_APP)
    assert (status, [command.send.msgid for command in await harness.sent_pushes()]) == ("SENT", [1])


async def test_a_push_with_an_idempotency_key_accepted_before_the_pause_is_handed_to_delivery(
    harness: SchedulingHarness,
) -> None:
    """Its app server waits for the answer; delivery sends it after the resume."""
    async with harness.running():
        await pause(harness)
        create = CreateTask(pushes=[push(1)], due_ms=harness.clock.now_ms(), at_once=True)
        await harness.command(TaskCommand(task_key="t", create=create))
        await harness.until_sent(1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["paused", "fell_due"])
async def test_a_task_is_sent_once_when_scheduling_crashes_while_it_pauses_or_resumes_it(
    harness: SchedulingHarness, kind: str, after: bool
) -> None:
    harness.log.when, harness.log.after = is_fact(kind), after
    async with harness.running():
        await pause(harness)
        await harness.create("t", push(1), push(2, OTHER_APP), in_s=1)
        harness.clock.move(1)
        if kind == "fell_due":
            await until_fact(harness, "paused", "t")
            await resume(harness)
        await harness.log.died.wait()
    if kind == "paused":
        async with harness.running():
            await until_fact(harness, "paused", "t")
            assert await harness.sent_pushes() == []
            await resume(harness)
            await harness.until_sent(1)
    async with harness.running():
        await harness.until_sent(1)
        await assert_sent_once(harness, "t", 1, 2)
    await assert_replays(harness)
