"""Requests with an idempotency key: the first of a key sends, exactly once over crashes, for ten minutes."""

import asyncio
import itertools
from collections.abc import Callable
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
)
from services.runtime.errors import DeadlineError, NotFoundError
from services.runtime.log.topics import partition_of
from tests.roles.scheduling.conftest import APP, PARTITIONS, START_MS, House, push
from tests.roles.scheduling.test_firing import assert_replays, is_fact, is_push

KEY = b"the key's hash"
WINDOW_S = 600


def task_keys(key: bytes = KEY) -> list[str]:
    """Three task keys in the partition of the claim's key."""
    partition = partition_of(key, PARTITIONS)
    names = (f"task {number}" for number in itertools.count())
    return list(itertools.islice((name for name in names if partition_of(name.encode(), PARTITIONS) == partition), 3))


FIRST, SECOND, THIRD = task_keys()


async def claim(
    house: House, task_key: str, msgid: int, *, key: bytes = KEY, in_s: float | None = None, settle: bool = True
) -> None:
    due_ms = house.clock.now_ms() + int((in_s or 0) * 1000)
    made = Claim(key=key, request_digest=b"digest", answer_json=b'{"id":%d}' % msgid)
    create = CreateTask(pushes=[push(msgid)], due_ms=due_ms, claim=made, at_once=in_s is None)
    await house.command(TaskCommand(task_key=task_key, create=create), settle)


async def holding(house: House, key: bytes = KEY) -> GetClaimResponse:
    found: GetClaimResponse = await house.stub.GetClaim(GetClaimRequest(key=key))
    return found


async def sent(house: House) -> list[int]:
    return [command.send.msgid for command in await house.sent_pushes()]


async def test_the_first_claim_sends_at_once_and_is_no_task_to_the_app(house: House) -> None:
    async with house.running():
        with pytest.raises(NotFoundError):
            await holding(house)
        await claim(house, FIRST, 1)
        found = await holding(house)
        assert (found.task_key, found.expires_ms) == (FIRST, START_MS + WINDOW_S * 1000)
        assert (found.claim.request_digest, found.claim.answer_json) == (b"digest", b'{"id":1}')
        (command,) = await house.sent_pushes()
        assert (command.send.msgid, command.send.task_key, command.meta.origin.door) == (1, "", "v2")
        await house.until_sent(1)
        with pytest.raises(NotFoundError):
            await house.stub.GetTask(GetTaskRequest(task_key=FIRST, appkeys=[APP]))
        listed = await house.stub.ListTasks(ListTasksRequest(appkeys=[APP], limit=10))
        assert (listed.total, list(listed.tasks)) == (0, [])
    await assert_replays(house)


async def test_a_later_claim_changes_nothing_for_ten_minutes(house: House) -> None:
    async with house.running():
        await claim(house, FIRST, 1)
        house.clock.move(WINDOW_S - 0.001)
        await claim(house, SECOND, 2)
        await claim(house, FIRST, 2)
        assert (await holding(house)).task_key == FIRST
        house.clock.move(0.001)
        await claim(house, FIRST, 3)
        assert (await holding(house)).task_key == FIRST, "a task key is used once"
        await claim(house, THIRD, 4)
        assert (await holding(house)).task_key == THIRD
        assert await sent(house) == [1, 4]
        await house.until_sent(2)
    await assert_replays(house)


async def test_claims_of_other_keys_do_not_touch(house: House) -> None:
    async with house.running():
        await claim(house, FIRST, 1)
        (other, *_) = task_keys(b"another")
        await claim(house, f"{other} of another key", 2, key=b"another")
        await claim(house, SECOND, 3)
        await house.until_sent(2)
        assert (await holding(house)).task_key == FIRST
        assert sorted(await sent(house)) == [1, 2]


async def test_a_timed_claim_is_a_task_and_holds_its_key(house: House) -> None:
    async with house.running():
        await claim(house, FIRST, 1, in_s=3600)
        await claim(house, SECOND, 2, in_s=3600)
        assert (await holding(house)).task_key == FIRST
        assert await house.status(FIRST) == "UNSENT"
        house.clock.move(WINDOW_S)
        await claim(house, SECOND, 2, in_s=3600)
        assert (await holding(house)).task_key == SECOND
        house.clock.move(3600)
        await house.until_sent(2)
        assert await sent(house) == [1, 2]
        assert await house.status(FIRST) == "SENT"
    await assert_replays(house)


async def test_claims_that_hold_no_longer_make_room(house: House) -> None:
    async with house.running():
        await claim(house, FIRST, 1)
        assert (await holding(house)).task_key == FIRST
        house.clock.move(WINDOW_S)
        partition = partition_of(KEY, PARTITIONS)
        other = next(
            key for number in itertools.count() if partition_of(key := b"other %d" % number, PARTITIONS) == partition
        )
        await claim(house, SECOND, 2, key=other)
        with pytest.raises(NotFoundError):
            await holding(house)
    await assert_replays(house)


async def test_whoever_asks_waits_until_the_push_is_in_the_log(house: House) -> None:
    async with house.running():
        house.log.when = is_push
        await claim(house, FIRST, 1, settle=False)
        await asyncio.wait_for(house.log.died.wait(), 10)
        with pytest.raises(DeadlineError):
            await house.stub.GetClaim(GetClaimRequest(key=KEY), timeout=0.05)
    async with house.running():
        assert (await holding(house)).task_key == FIRST
        assert await sent(house) == [1]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "when", [is_fact("scheduled"), is_fact("fell_due"), is_push, is_fact("sent")], ids=["claim", "due", "push", "sent"]
)
async def test_wherever_scheduling_dies_the_push_goes_out_once(
    house: House, when: Callable[[Any], bool], after: bool
) -> None:
    async with house.running():
        house.log.when, house.log.after = when, after
        await claim(house, FIRST, 1, settle=False)
        await asyncio.wait_for(house.log.died.wait(), 10)
    async with house.running():
        await claim(house, SECOND, 2)
        found = await holding(house)
        assert (found.task_key, found.claim.answer_json) == (FIRST, b'{"id":1}')
        await house.until_sent(1)
        commands = await house.sent_pushes()
        assert {(command.send.msgid, command.meta.event_id) for command in commands} == {
            (1, commands[0].meta.event_id)
        }, "what was sent again has the same ids, and is dropped by them"
        assert len(await house.facts("scheduled")) == 1
    await assert_replays(house)
