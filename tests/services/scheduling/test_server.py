"""Look-ups of tasks, and cancels."""

import asyncio

import pytest

from protos.push.v1.push_pb2 import Audience, Tokens
from protos.scheduling.v1.scheduling_pb2 import ListTasksRequest, ListTasksResponse
from services.errors import NotFoundError
from tests.services.scheduling.conftest import APP, OTHER_APP, START_MS, SchedulingHarness, push
from tests.services.scheduling.test_timer import assert_replays


async def listed(
    harness: SchedulingHarness, *appkeys: str, offset: int = 0, limit: int = 50, descending: bool = False
) -> list[str]:
    answer = await page(harness, *appkeys, offset=offset, limit=limit, descending=descending)
    return [task.task_key for task in answer.tasks]


async def page(
    harness: SchedulingHarness, *appkeys: str, offset: int, limit: int, descending: bool = False
) -> ListTasksResponse:
    request = ListTasksRequest(appkeys=appkeys, descending=descending, offset=offset, limit=limit)
    return await harness.stub.ListTasks(request)  # type: ignore[no-any-return]


async def test_a_task_is_returned_as_it_was_created(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t", push(1), push(2, OTHER_APP), in_s=90)
        task = await harness.task("t", OTHER_APP)
        assert (task.task_key, task.created_ms, task.due_ms) == ("t", START_MS, START_MS + 90_000)
        assert [one.message.content for one in task.pushes] == ["message 1", "message 2"]
        assert await harness.status("t") == "UNSENT"
        assert task.cancelled_by_event_id == b""


@pytest.mark.parametrize(("key", "appkey"), [("unknown", APP), ("t", OTHER_APP)])
async def test_a_task_of_another_app_is_not_found(harness: SchedulingHarness, key: str, appkey: str) -> None:
    async with harness.running():
        await harness.create("t")
        with pytest.raises(NotFoundError):
            await harness.task(key, appkey)


async def test_tasks_are_listed_by_creation_time_in_pages(harness: SchedulingHarness) -> None:
    async with harness.running():
        for key, appkeys in {"c": [APP], "a": [APP, OTHER_APP], "b": [OTHER_APP], "d": [APP]}.items():
            await harness.create(key, *(push(1, appkey) for appkey in appkeys))
            harness.clock.move(1)
        await harness.create("e")
        await harness.create("A")

        assert await listed(harness, APP) == ["c", "a", "d", "A", "e"]
        assert await listed(harness, APP, descending=True) == ["e", "A", "d", "a", "c"]
        assert await listed(harness, APP, OTHER_APP) == ["c", "a", "b", "d", "A", "e"]
        assert await listed(harness, APP, offset=1, limit=2) == ["a", "d"]
        assert await listed(harness, APP, offset=5) == []
        assert await listed(harness, "1999999999") == []
        assert await listed(harness) == []
        assert (await page(harness, APP, OTHER_APP, offset=2, limit=1)).total == 6
        assert (await page(harness, OTHER_APP, offset=0, limit=1)).total == 2


async def test_waiting_tasks_are_listed_before_the_others_by_due_time(harness: SchedulingHarness) -> None:
    async with harness.running():
        for key, in_s in {"sent": 10, "late": 900, "soon": 60, "also-soon": 60, "cancelled": 100}.items():
            await harness.create(key, push(1), *([push(2, OTHER_APP)] if key == "soon" else []), in_s=in_s)
            harness.clock.move(0.001)
        await harness.create("foreign", push(3, OTHER_APP), in_s=30)
        await harness.cancel("cancelled")
        harness.clock.move(10)
        await harness.until_sent(1)

        wanted = ["soon", "also-soon", "late", "cancelled", "sent"]
        assert await waiting_first(harness, APP) == wanted
        for limit in range(1, 6):
            pages = [await waiting_first(harness, APP, offset=offset, limit=limit) for offset in range(6)]
            assert pages == [wanted[offset : offset + limit] for offset in range(6)]
        assert await waiting_first(harness, OTHER_APP) == ["foreign", "soon"]
        assert await waiting_first(harness, APP, OTHER_APP, limit=3) == ["foreign", "soon", "also-soon"]
        assert await waiting_first(harness) == []


async def waiting_first(harness: SchedulingHarness, *appkeys: str, offset: int = 0, limit: int = 50) -> list[str]:
    request = ListTasksRequest(appkeys=appkeys, waiting_first=True, offset=offset, limit=limit)
    return [task.task_key for task in (await harness.stub.ListTasks(request)).tasks]


async def test_a_cancelled_task_is_never_sent(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t", push(1))
        await harness.create("witness", push(2))
        command = await harness.cancel("t")
        task = await harness.task("t")
        assert await harness.status("t") == "CANCELLED"
        assert task.cancelled_by_event_id == command

        harness.clock.move(60)
        await harness.until_sent(1)
        assert [one.send.msgid for one in await harness.sent_pushes()] == [2]
    await assert_replays(harness)


async def test_of_two_cancels_only_the_first_has_an_effect(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t")
        first, second = await asyncio.gather(harness.cancel("t"), harness.cancel("t"))
        assert (await harness.task("t")).cancelled_by_event_id == first != second


async def test_a_cancel_after_sending_changes_nothing(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t", in_s=1)
        harness.clock.move(1)
        await harness.until_sent(1)
        await harness.cancel("t")
        assert await harness.status("t") == "SENT"
        assert await harness.facts("cancelled") == []


async def test_a_cancel_by_another_app_changes_nothing(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t")
        await harness.cancel("t", OTHER_APP)
        assert await harness.status("t") == "UNSENT"


async def test_a_task_that_fell_due_has_status_sent_and_cannot_be_cancelled(harness: SchedulingHarness) -> None:
    """Its push cannot be appended yet, because the registry does not answer."""
    async with harness.running():
        await harness.create("t", push(1, audience=Audience(tokens=Tokens(tokens=["x"]))), in_s=0)
        await harness.create("witness", push(2), in_s=0)
        await harness.until_sent(1)
        await harness.cancel("t")
        assert await harness.status("t") == "SENT"
        assert await harness.facts("cancelled") == []
        assert [one.send.msgid for one in await harness.sent_pushes()] == [2]


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancel_and_a_due_moment_at_the_same_time(harness: SchedulingHarness, cancel_first: bool) -> None:
    """The fact that is first in `tasks` decides; never do both apply, and the answer says which one did."""
    async with harness.running():
        for n in range(20):
            await harness.create(f"t{n}", push(n + 1), in_s=60)
        if cancel_first:
            cancels = [asyncio.create_task(harness.cancel(f"t{n}")) for n in range(20)]
            await asyncio.sleep(0)
            harness.clock.move(60)
        else:
            harness.clock.move(60)
            await asyncio.sleep(0)
            cancels = [asyncio.create_task(harness.cancel(f"t{n}")) for n in range(20)]
        commands = await asyncio.gather(*cancels)
        tasks = [await harness.task(f"t{n}") for n in range(20)]
        won = {n for n in range(20) if tasks[n].cancelled_by_event_id == commands[n]}
        await harness.until_sent(20 - len(won))
        await harness.create("witness", push(99), in_s=0)
        await harness.until_sent(21 - len(won))

        assert {one.send.msgid - 1 for one in await harness.sent_pushes()} - {98} == set(range(20)) - won
        assert {fact.task_key for fact in await harness.facts("cancelled")} == {f"t{n}" for n in won}
    await assert_replays(harness)
