"""Due tasks of many apps: they are sent in turn, and one that cannot be sent ends as failed and delays no other."""

import asyncio
import sqlite3

import pytest

from protos.push.v1.push_pb2 import Audience, Tokens
from protos.scheduling.v1.scheduling_pb2 import Claim, CreateTask, GetClaimRequest, TaskCommand
from services.domain import command_writer
from services.domain.audience_resolver import AudienceResolver, ResolvedAudience
from services.runtime.errors import CarillonError
from services.runtime.log.topics import partition_of
from services.scheduling import app_sender, due_tasks
from services.scheduling.app_sender import MAX_FAILURES
from testkit.waiting import run_ready_tasks, until_holds
from tests.roles.scheduling.conftest import APP, OTHER_APP, PARTITIONS, Installation, push
from tests.roles.scheduling.test_firing import assert_replays
from tests.roles.scheduling.test_pauses import pause, resume


async def until_failed(installation: Installation, key: str) -> str:
    """Move the clock until the task has failed; return why."""
    while not (failed := [fact for fact in await installation.facts("failed") if fact.task_key == key]):
        installation.clock.move(app_sender.RETRY_MS / 1000)
        await run_ready_tasks()
    assert len(failed) == 1
    return failed[0].failed.reason


@pytest.mark.parametrize("after_pause", [False, True])
async def test_a_task_does_not_wait_for_another_apps_many_due_tasks(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, after_pause: bool
) -> None:
    """The other app's tasks fell due before it: there are 15 pages of them."""
    monkeypatch.setattr(due_tasks, "PAGE", 10)
    monkeypatch.setattr(app_sender, "CONCURRENT_TASKS", 5)
    async with installation.running():
        if after_pause:
            await pause(installation, None)
        await asyncio.gather(*(installation.create(f"noisy {n}", push(1000 + n), wait=False) for n in range(150)))
        await installation.create("quiet", push(1, OTHER_APP), in_s=60.5)
        installation.clock.move(60.5)
        if after_pause:
            while len(await installation.facts("paused")) < 151:
                await run_ready_tasks()
            await resume(installation, None)
        await installation.until_sent(151)
        sent = [command.send.msgid for command in await installation.sent_pushes()]
        assert sorted(sent) == [1, *range(1000, 1150)]
        assert sent.index(1) < 30
    await assert_replays(installation)


async def test_a_task_that_is_refused_fails_at_once_with_the_reason(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_writer, "MAX_RECORD_BYTES", 1000)
    large = push(1)
    large.message.content = "x" * 2000
    async with installation.running():
        await installation.create("large", large, in_s=0)
        await installation.create("small", push(2), in_s=0)
        await installation.until_sent(1)
        assert "too large" in await until_failed(installation, "large")
        assert await installation.status("large") == "FAILED"
        await installation.cancel("large")
        assert await installation.status("large") == "FAILED"
    monkeypatch.undo()
    async with installation.running():
        await installation.create("witness", push(3), in_s=0)
        await installation.until_sent(2)
        assert [command.send.msgid for command in await installation.sent_pushes()] == [2, 3]
    await assert_replays(installation)


async def test_a_task_whose_attempts_fail_ends_as_failed_and_delays_no_other(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    async def resolve(resolver: AudienceResolver, appkey: str, audience: Audience) -> ResolvedAudience:
        nonlocal attempts
        if appkey == APP:
            attempts += 1
            raise ValueError("broken")
        return ResolvedAudience(audience)

    monkeypatch.setattr(AudienceResolver, "resolve", resolve)
    async with installation.running():
        await installation.create("broken", push(1), in_s=0)
        await installation.create("works", push(2, OTHER_APP), in_s=0)
        await installation.until_sent(1)
        reason = await until_failed(installation, "broken")
        assert reason == f"{MAX_FAILURES} attempts failed, the last one with: internal error"
        assert attempts == MAX_FAILURES
        assert [command.send.msgid for command in await installation.sent_pushes()] == [2]
    await assert_replays(installation)


async def test_a_push_with_an_idempotency_key_that_cannot_be_sent_is_answered_with_the_error(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_writer, "MAX_RECORD_BYTES", 1)
    key = next(key for n in range(99) if partition_of(key := b"%d" % n, PARTITIONS) == partition_of(b"t", PARTITIONS))
    create = CreateTask(pushes=[push(1)], due_ms=installation.clock.now_ms(), at_once=True, claim=Claim(key=key))
    async with installation.running():
        await installation.command(TaskCommand(task_key="t", create=create))
        for _ in range(2):
            with pytest.raises(CarillonError, match="the push was not sent: the request is too large"):
                await installation.stub.GetClaim(GetClaimRequest(key=key))
    await assert_replays(installation)


async def test_while_the_registry_is_away_it_is_asked_about_one_page_of_an_apps_tasks(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_sender, "CONCURRENT_TASKS", 5)
    attempts = 0
    resolve = AudienceResolver.resolve

    async def count(resolver: AudienceResolver, appkey: str, audience: Audience) -> ResolvedAudience:
        nonlocal attempts
        attempts += 1
        return await resolve(resolver, appkey, audience)

    monkeypatch.setattr(AudienceResolver, "resolve", count)
    async with installation.running(registries=2, hidden=True):
        for n in range(20):
            await installation.create(f"t{n:02}", push(n + 1, audience=Audience(tokens=Tokens(tokens=["x"]))))
        installation.clock.move(60)
        await until_holds(lambda: attempts > 0)
        await run_ready_tasks()
        assert attempts <= 10
        installation.show_registry()
        while len(await installation.facts("sent")) < 20:
            installation.clock.move(1)
            await run_ready_tasks()
    await assert_replays(installation)


async def test_a_state_of_an_earlier_version_is_rebuilt(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t", push(1))
    state = sqlite3.connect(installation.settings.state_dir("scheduling") / "tasks.sqlite")
    state.executescript("DROP TABLE tasks; CREATE TABLE tasks (task_key TEXT, due_ms INTEGER); PRAGMA user_version = 1")
    state.close()
    async with installation.running():
        assert await installation.status("t") == "UNSENT"
        installation.clock.move(60)
        await installation.until_sent(1)
    await assert_replays(installation)
