"""Due tasks of many apps: they are sent in turn, and one that cannot be sent ends as failed and delays no other."""

import asyncio
import sqlite3

import pytest

from protos.push.v1.push_pb2 import Audience, Tokens
from protos.scheduling.v1.scheduling_pb2 import Claim, CreateTask, GetClaimRequest, TaskCommand
from services.domain import command_writer
from services.domain.token_resolver import ResolvedAudience, TokenAndAliasResolver
from services.errors import CarillonError
from services.log.topics import partition_of
from services.scheduling import app_sender, timer
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.scheduling.conftest import APP, OTHER_APP, PARTITIONS, SchedulingHarness, push
from tests.services.scheduling.test_pauses import pause, resume
from tests.services.scheduling.test_timer import assert_replays


async def until_failed(harness: SchedulingHarness, key: str) -> str:
    """Move the clock until the task has failed; return why."""
    while not (failed := [fact for fact in await harness.facts("failed") if fact.task_key == key]):
        harness.clock.move(app_sender.MAX_RETRY_MS / 1000)
        await run_ready_tasks()
    assert len(failed) == 1
    return failed[0].failed.reason


@pytest.mark.parametrize("after_pause", [False, True])
async def test_a_task_does_not_wait_for_another_apps_many_due_tasks(
    harness: SchedulingHarness, monkeypatch: pytest.MonkeyPatch, after_pause: bool
) -> None:
    """The other app's tasks fell due before it: there are 15 pages of them."""
    monkeypatch.setattr(timer, "PAGE", 10)
    monkeypatch.setattr(app_sender, "CONCURRENT_TASKS", 5)
    async with harness.running():
        if after_pause:
            await pause(harness, None)
        await asyncio.gather(*(harness.create(f"noisy {n}", push(1000 + n), wait=False) for n in range(150)))
        await harness.create("quiet", push(1, OTHER_APP), in_s=60.5)
        harness.clock.move(60.5)
        if after_pause:
            while len(await harness.facts("paused")) < 151:
                await run_ready_tasks()
            await resume(harness, None)
        await harness.until_sent(151)
        sent = [command.send.msgid for command in await harness.sent_pushes()]
        assert sorted(sent) == [1, *range(1000, 1150)]
        assert sent.index(1) < 30
    await assert_replays(harness)


async def test_a_timed_task_does_not_wait_for_its_apps_many_tasks_that_go_out_at_once(
    harness: SchedulingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sent by due time. Some were created with a clock that is ahead, and go out at once all the same."""
    monkeypatch.setattr(timer, "PAGE", 10)
    monkeypatch.setattr(app_sender, "CONCURRENT_TASKS", 5)
    due_ms = harness.clock.now_ms()
    for number in range(150):
        at_once = CreateTask(pushes=[push(1000 + number)], due_ms=due_ms + 1 + number * 100, at_once=True)
        await harness.command(TaskCommand(task_key=f"at once {number}", create=at_once), wait=False)
    await harness.create("timed", push(1), in_s=0, wait=False)
    async with harness.running():
        await harness.until_sent(151)
        sent = [command.send.msgid for command in await harness.sent_pushes()]
        assert sorted(sent) == [1, *range(1000, 1150)]
        assert sent.index(1) < 30
    await assert_replays(harness)


async def test_a_task_that_is_refused_fails_at_once_with_the_reason(
    harness: SchedulingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_writer, "MAX_RECORD_BYTES", 1000)
    large = push(1)
    large.message.content = "x" * 2000
    async with harness.running():
        await harness.create("large", large, in_s=0)
        await harness.create("small", push(2), in_s=0)
        await harness.until_sent(1)
        assert "too large" in await until_failed(harness, "large")
        assert await harness.status("large") == "FAILED"
        await harness.cancel("large")
        assert await harness.status("large") == "FAILED"
    monkeypatch.undo()
    async with harness.running():
        await harness.create("witness", push(3), in_s=0)
        await harness.until_sent(2)
        assert [command.send.msgid for command in await harness.sent_pushes()] == [2, 3]
    await assert_replays(harness)


async def test_a_task_whose_attempts_fail_ends_as_failed_and_delays_no_other(
    harness: SchedulingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_sender, "MAX_FAILURES", 3)
    attempts = 0

    async def resolve(resolver: TokenAndAliasResolver, appkey: str, audience: Audience) -> ResolvedAudience:
        nonlocal attempts
        if appkey == APP:
            attempts += 1
            raise ValueError("broken")
        return ResolvedAudience(audience)

    monkeypatch.setattr(TokenAndAliasResolver, "resolve", resolve)
    async with harness.running():
        await harness.create("broken", push(1), in_s=0)
        await harness.create("works", push(2, OTHER_APP), in_s=0)
        await harness.until_sent(1)
        reason = await until_failed(harness, "broken")
        assert reason == "3 attempts failed, the last one with: internal error"
        assert attempts == 3
        assert [command.send.msgid for command in await harness.sent_pushes()] == [2]
    await assert_replays(harness)


async def test_a_push_with_an_idempotency_key_that_cannot_be_sent_is_answered_with_the_error(
    harness: SchedulingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_writer, "MAX_RECORD_BYTES", 1)
    key = next(key for n in range(99) if partition_of(key := b"%d" % n, PARTITIONS) == partition_of(b"t", PARTITIONS))
    create = CreateTask(pushes=[push(1)], due_ms=harness.clock.now_ms(), at_once=True, claim=Claim(key=key))
    async with harness.running():
        await harness.command(TaskCommand(task_key="t", create=create))
        for _ in range(2):
            with pytest.raises(CarillonError, match="the push was not sent: the request is too large"):
                await harness.stub.GetClaim(GetClaimRequest(key=key))
    await assert_replays(harness)


async def test_while_the_registry_is_away_it_is_asked_about_one_page_of_an_apps_tasks(
    harness: SchedulingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_sender, "CONCURRENT_TASKS", 5)
    attempts = 0
    resolve = TokenAndAliasResolver.resolve

    async def count(resolver: TokenAndAliasResolver, appkey: str, audience: Audience) -> ResolvedAudience:
        nonlocal attempts
        attempts += 1
        return await resolve(resolver, appkey, audience)

    monkeypatch.setattr(TokenAndAliasResolver, "resolve", count)
    async with harness.running(registries=2, hidden=True):
        for n in range(20):
            await harness.create(f"t{n:02}", push(n + 1, audience=Audience(tokens=Tokens(tokens=["x"]))))
        harness.clock.move(60)
        await until_holds(lambda: attempts > 0)
        await run_ready_tasks()
        assert attempts <= 10
        harness.show_registry()
        while len(await harness.facts("sent")) < 20:
            harness.clock.move(1)
            await run_ready_tasks()
    await assert_replays(harness)


async def test_a_state_of_an_earlier_version_is_rebuilt(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t", push(1))
    state = sqlite3.connect(harness.settings.state_dir("scheduling") / "tasks.sqlite")
    state.executescript("DROP TABLE tasks; CREATE TABLE tasks (task_key TEXT, due_ms INTEGER); PRAGMA user_version = 1")
    state.close()
    async with harness.running():
        assert await harness.status("t") == "UNSENT"
        harness.clock.move(60)
        await harness.until_sent(1)
    await assert_replays(harness)
