"""Idempotency keys: for ten minutes only the first request of a key is sent, exactly once even across crashes."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protos.scheduling.v1.scheduling_pb2 import (
    Claim,
    CreateTask,
    GetClaimRequest,
    GetClaimResponse,
    GetTaskRequest,
    ListTasksRequest,
    TaskCommand,
    TaskFact,
    TaskScheduled,
)
from services.errors import DeadlineError, NotFoundError
from services.log.topics import partition_of
from services.replica.sqlite_store import SqliteStore
from services.scheduling import timer
from services.scheduling.state import CLAIM_MS, Status
from services.scheduling.store import DDL, TaskTable
from tests.services.scheduling.conftest import APP, PARTITIONS, START_MS, SchedulingHarness, push
from tests.services.scheduling.test_timer import assert_replays, is_fact, is_push

KEY = b"the key's hash"
WINDOW_S = 600


def task_keys(key: bytes = KEY) -> list[str]:
    """Return three task keys in the partition of the claim's key."""
    partition = partition_of(key, PARTITIONS)
    names = (f"task {number}" for number in itertools.count())
    return list(itertools.islice((name for name in names if partition_of(name.encode(), PARTITIONS) == partition), 3))


FIRST, SECOND, THIRD = task_keys()


async def claim(
    harness: SchedulingHarness,
    task_key: str,
    msgid: int,
    *,
    key: bytes = KEY,
    in_s: float | None = None,
    wait: bool = True,
    ahead_s: float = 0,
) -> None:
    """Claim the key, for a task in `in_s` seconds or at once. `ahead_s`: how far the edge's clock is ahead."""
    due_ms = harness.clock.now_ms() + int(((in_s or 0) + ahead_s) * 1000)
    made = Claim(key=key, request_digest=b"digest", answer_json=b'{"id":%d}' % msgid)
    create = CreateTask(pushes=[push(msgid)], due_ms=due_ms, claim=made, at_once=in_s is None)
    await harness.command(TaskCommand(task_key=task_key, create=create), wait)


async def current_claim(harness: SchedulingHarness, key: bytes = KEY) -> GetClaimResponse:
    found: GetClaimResponse = await harness.stub.GetClaim(GetClaimRequest(key=key))
    return found


async def sent(harness: SchedulingHarness) -> list[int]:
    return [command.send.msgid for command in await harness.sent_pushes()]


async def test_claims_are_sent_at_once_in_the_order_of_the_edges_clock_though_it_is_ahead(
    harness: SchedulingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are those of an app with more due tasks than are taken at a time."""
    monkeypatch.setattr(timer, "PAGE", 2)
    await claim(harness, FIRST, 3, key=b"c", wait=False, ahead_s=3600.2)
    await claim(harness, SECOND, 1, key=b"a", wait=False, ahead_s=3600)
    await claim(harness, THIRD, 2, key=b"b", wait=False, ahead_s=3600.1)
    async with harness.running():
        await harness.until_sent(3)
        assert await sent(harness) == [1, 2, 3]
    await assert_replays(harness)


async def test_the_first_claim_is_sent_at_once_and_not_listed_as_a_task(harness: SchedulingHarness) -> None:
    async with harness.running():
        with pytest.raises(NotFoundError):
            await current_claim(harness)
        await claim(harness, FIRST, 1)
        found = await current_claim(harness)
        assert (found.task_key, found.expires_ms) == (FIRST, START_MS + WINDOW_S * 1000)
        assert (found.claim.request_digest, found.claim.answer_json) == (b"digest", b'{"id":1}')
        (command,) = await harness.sent_pushes()
        assert (command.send.msgid, command.send.task_key, command.meta.origin.interface) == (1, "", "v2")
        assert command.meta.writer == "scheduling", "delivery's dedupe window goes by that"
        await harness.until_sent(1)
        with pytest.raises(NotFoundError):
            await harness.stub.GetTask(GetTaskRequest(task_key=FIRST, appkeys=[APP]))
        listed = await harness.stub.ListTasks(ListTasksRequest(appkeys=[APP], limit=10))
        assert (listed.total, list(listed.tasks)) == (0, [])
    await assert_replays(harness)


async def test_a_later_claim_changes_nothing_for_ten_minutes(harness: SchedulingHarness) -> None:
    async with harness.running():
        await claim(harness, FIRST, 1)
        harness.clock.move(WINDOW_S - 0.001)
        await claim(harness, SECOND, 2)
        await claim(harness, FIRST, 2)
        assert (await current_claim(harness)).task_key == FIRST
        harness.clock.move(0.001)
        await claim(harness, FIRST, 3)
        assert (await current_claim(harness)).task_key == FIRST, "a task key is used once"
        await claim(harness, THIRD, 4)
        assert (await current_claim(harness)).task_key == THIRD
        assert await sent(harness) == [1, 4]
        await harness.until_sent(2)
    await assert_replays(harness)


async def test_claims_of_different_keys_are_independent(harness: SchedulingHarness) -> None:
    async with harness.running():
        await claim(harness, FIRST, 1)
        (other, *_) = task_keys(b"another")
        await claim(harness, f"{other} of another key", 2, key=b"another")
        await claim(harness, SECOND, 3)
        await harness.until_sent(2)
        assert (await current_claim(harness)).task_key == FIRST
        assert sorted(await sent(harness)) == [1, 2]


async def test_a_timed_claim_is_a_task_and_blocks_its_key(harness: SchedulingHarness) -> None:
    async with harness.running():
        await claim(harness, FIRST, 1, in_s=3600)
        await claim(harness, SECOND, 2, in_s=3600)
        assert (await current_claim(harness)).task_key == FIRST
        assert await harness.status(FIRST) == "UNSENT"
        harness.clock.move(WINDOW_S)
        await claim(harness, SECOND, 2, in_s=3600)
        assert (await current_claim(harness)).task_key == SECOND
        harness.clock.move(3600)
        await harness.until_sent(2)
        assert await sent(harness) == [1, 2]
        assert await harness.status(FIRST) == "SENT"
    await assert_replays(harness)


async def test_expired_claims_are_deleted(harness: SchedulingHarness) -> None:
    async with harness.running():
        await claim(harness, FIRST, 1)
        assert (await current_claim(harness)).task_key == FIRST
        harness.clock.move(WINDOW_S)
        partition = partition_of(KEY, PARTITIONS)
        other = next(
            key for number in itertools.count() if partition_of(key := b"other %d" % number, PARTITIONS) == partition
        )
        await claim(harness, SECOND, 2, key=other)
        with pytest.raises(NotFoundError):
            await current_claim(harness)
    await assert_replays(harness)


def test_a_task_that_failed_is_deleted_with_its_expired_claim(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks.sqlite", DDL)
    tasks = TaskTable(store.rows)
    for task_key, created_ms in (("expired", 0), ("claimed", 1), ("new", CLAIM_MS)):
        made = Claim(key=task_key.encode())
        scheduled = TaskScheduled(pushes=[push(1)], created_ms=created_ms, claim=made, at_once=True)
        tasks.add(0, TaskFact(task_key=task_key, scheduled=scheduled))
        tasks.change(task_key, (Status.WAITING,), Status.FELL_DUE)
        tasks.fail(task_key, "too large")
    assert tasks.find("expired") is None
    assert [(found := tasks.find_claim(key)) and found.failure for key in (b"claimed", b"new")] == ["too large"] * 2
    store.close()


async def test_a_claim_is_answered_once_its_push_is_in_the_log(harness: SchedulingHarness) -> None:
    async with harness.running():
        harness.log.when = is_push
        await claim(harness, FIRST, 1, wait=False)
        await asyncio.wait_for(harness.log.died.wait(), 60)
        with pytest.raises(DeadlineError):
            await harness.stub.GetClaim(GetClaimRequest(key=KEY), timeout=0.05)
    async with harness.running():
        assert (await current_claim(harness)).task_key == FIRST
        assert await sent(harness) == [1]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "when", [is_fact("scheduled"), is_fact("fell_due"), is_push, is_fact("sent")], ids=["claim", "due", "push", "sent"]
)
async def test_the_push_is_sent_once_wherever_scheduling_crashes(
    harness: SchedulingHarness, when: Callable[[Any], bool], after: bool
) -> None:
    async with harness.running():
        harness.log.when, harness.log.after = when, after
        await claim(harness, FIRST, 1, wait=False)
        await asyncio.wait_for(harness.log.died.wait(), 60)
    async with harness.running():
        await claim(harness, SECOND, 2)
        found = await current_claim(harness)
        assert (found.task_key, found.claim.answer_json) == (FIRST, b'{"id":1}')
        await harness.until_sent(1)
        commands = await harness.sent_pushes()
        assert {(command.send.msgid, command.meta.event_id) for command in commands} == {
            (1, commands[0].meta.event_id)
        }, "repeats have the same ids, by which delivery drops them"
        assert len(await harness.facts("scheduled")) == 1
    await assert_replays(harness)
