"""Tasks that fall due while one of their apps is paused wait, and are sent once after the resume or expire."""

import pytest

from protos.registry.v1.apps_pb2 import App, AppFact, InstallationPause, Pause
from protos.runtime.v1.log_pb2 import Position
from protos.scheduling.v1.scheduling_pb2 import CreateTask, TaskCommand
from services.domain.apps import INSTALLATION_PAUSE_KEY
from services.domain.topics import APPS
from services.runtime.log.port import NewRecord
from services.scheduling import due_tasks
from testkit.waiting import run_ready_tasks
from tests.roles.scheduling.conftest import APP, OTHER_APP, Installation, push
from tests.roles.scheduling.test_firing import assert_replays, assert_sent_once, is_fact


async def set_pause(installation: Installation, appkey: str | None, pause: Pause | None) -> None:
    """Pause or resume the app, or all apps, as the registry does; return when scheduling has applied it."""
    if appkey is None:
        key, fact = INSTALLATION_PAUSE_KEY, AppFact(installation_pause=InstallationPause(pause=pause))
    else:
        key, fact = appkey.encode(), AppFact(app=App(appkey=appkey, pause=pause))
    (offset,) = await installation.log.append([NewRecord(APPS.name, 0, key, fact.SerializeToString())])
    position = Position(topic=APPS.name, partition=0, offset=offset)
    assert not await installation.peers.roles_behind(["scheduling"], position)


async def pause(installation: Installation, appkey: str | None = APP) -> None:
    await set_pause(installation, appkey, Pause(since_ms=installation.clock.now_ms()))


async def resume(installation: Installation, appkey: str | None = APP) -> None:
    await set_pause(installation, appkey, None)


async def until_fact(installation: Installation, kind: str, key: str) -> None:
    while key not in [fact.task_key for fact in await installation.facts(kind)]:
        await run_ready_tasks()


@pytest.mark.parametrize("appkey", [APP, None], ids=["one app", "all apps"])
async def test_a_task_waits_for_the_resume_and_is_sent_with_what_is_left_of_its_time_to_live(
    installation: Installation, appkey: str | None
) -> None:
    async with installation.running():
        await pause(installation, appkey)
        await installation.create("t", push(1), in_s=10)
        installation.clock.move(10)
        await until_fact(installation, "paused", "t")
        installation.clock.move(45)
        await run_ready_tasks()
        assert await installation.sent_pushes() == []
        assert await installation.status("t") == "UNSENT"
        await resume(installation, appkey)
        await installation.until_sent(1)
        await assert_sent_once(installation, "t", 1)
        (command,) = await installation.sent_pushes()
        assert command.send.period_s == 15
    await assert_replays(installation)


async def test_a_task_whose_time_to_live_ends_during_the_pause_is_not_sent(installation: Installation) -> None:
    async with installation.running():
        await pause(installation)
        await installation.create("t", push(1), in_s=10)
        await installation.create("two", push(2), push(3), in_s=11)
        installation.clock.move(11)
        await until_fact(installation, "paused", "two")
        installation.clock.move(59)
        while await installation.status("t") != "EXPIRED":
            await run_ready_tasks()
        assert await installation.status("two") == "UNSENT"
        await installation.cancel("t")
        assert await installation.status("t") == "EXPIRED"
        await resume(installation)
        await installation.until_sent(1)
        await assert_sent_once(installation, "two", 2, 3)
        assert {command.send.msgid for command in await installation.sent_pushes()} == {2, 3}
    await assert_replays(installation)


async def test_a_waiting_task_can_be_cancelled(installation: Installation) -> None:
    async with installation.running():
        await pause(installation)
        await installation.create("t", push(1), in_s=1)
        installation.clock.move(1)
        await until_fact(installation, "paused", "t")
        await installation.cancel("t")
        assert await installation.status("t") == "CANCELLED"
        await resume(installation)
        await installation.create("witness", push(2), in_s=0)
        await installation.until_sent(1)
        assert [command.send.msgid for command in await installation.sent_pushes()] == [2]
    await assert_replays(installation)


async def test_the_tasks_of_a_paused_app_delay_no_other_apps_tasks(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more waiting tasks than one page holds, all due before the other app's task."""
    monkeypatch.setattr(due_tasks, "PAGE", 5)
    async with installation.running():
        await pause(installation)
        for n in range(12):
            await installation.create(f"t{n:02}", push(100 + n), in_s=1)
        await installation.create("both", push(200), push(201, OTHER_APP), in_s=1)
        await installation.create("other", push(1, OTHER_APP), in_s=2)
        installation.clock.move(2)
        await installation.until_sent(1)
        await assert_other_is_alone(installation)
        await installation.create("another", push(2, OTHER_APP), in_s=0)
        await installation.until_sent(2)
        await resume(installation)
        await installation.until_sent(2 + 13)
        msgids = [command.send.msgid for command in await installation.sent_pushes()]
        assert sorted(msgids) == [1, 2, *range(100, 112), 200, 201]
    await assert_replays(installation)


async def assert_other_is_alone(installation: Installation) -> None:
    status = await installation.status("other", OTHER_APP)
    assert (status, [command.send.msgid for command in await installation.sent_pushes()]) == ("SENT", [1])


async def test_a_push_with_an_idempotency_key_accepted_before_the_pause_is_handed_to_delivery(
    installation: Installation,
) -> None:
    """Its app server waits for the answer; delivery sends it after the resume."""
    async with installation.running():
        await pause(installation)
        create = CreateTask(pushes=[push(1)], due_ms=installation.clock.now_ms(), at_once=True)
        await installation.command(TaskCommand(task_key="t", create=create))
        await installation.until_sent(1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["paused", "fell_due"])
async def test_a_crash_while_a_task_is_paused_or_resumed(installation: Installation, kind: str, after: bool) -> None:
    installation.log.when, installation.log.after = is_fact(kind), after
    async with installation.running():
        await pause(installation)
        await installation.create("t", push(1), push(2, OTHER_APP), in_s=1)
        installation.clock.move(1)
        if kind == "fell_due":
            await until_fact(installation, "paused", "t")
            await resume(installation)
        await installation.log.died.wait()
    if kind == "paused":
        async with installation.running():
            await until_fact(installation, "paused", "t")
            assert await installation.sent_pushes() == []
            await resume(installation)
            await installation.until_sent(1)
    async with installation.running():
        await installation.until_sent(1)
        await assert_sent_once(installation, "t", 1, 2)
    await assert_replays(installation)
