"""What callers are told about tasks, and what a cancel does."""

import asyncio

import pytest

from protos.push.v1.push_pb2 import Audience, Tokens
from protos.scheduling.v1.scheduling_pb2 import ListTasksRequest, ListTasksResponse
from services.runtime.errors import NotFoundError
from tests.roles.scheduling.conftest import APP, OTHER_APP, START_MS, House, push
from tests.roles.scheduling.test_firing import assert_replays


async def listed(house: House, *appkeys: str, offset: int = 0, limit: int = 50, descending: bool = False) -> list[str]:
    answer = await page(house, *appkeys, offset=offset, limit=limit, descending=descending)
    return [task.task_key for task in answer.tasks]


async def page(house: House, *appkeys: str, offset: int, limit: int, descending: bool = False) -> ListTasksResponse:
    request = ListTasksRequest(appkeys=appkeys, descending=descending, offset=offset, limit=limit)
    return await house.stub.ListTasks(request)  # type: ignore[no-any-return]


async def test_a_task_is_shown_as_it_was_made(house: House) -> None:
    async with house.running():
        await house.create("t", push(1), push(2, OTHER_APP), in_s=90)
        task = await house.task("t", OTHER_APP)
        assert (task.task_key, task.created_ms, task.due_ms) == ("t", START_MS, START_MS + 90_000)
        assert [one.message.content for one in task.pushes] == ["message 1", "message 2"]
        assert await house.status("t") == "UNSENT"
        assert task.cancelled_by_event_id == b""


@pytest.mark.parametrize(("key", "appkey"), [("unknown", APP), ("t", OTHER_APP)])
async def test_a_task_that_is_not_the_callers_is_not_found(house: House, key: str, appkey: str) -> None:
    async with house.running():
        await house.create("t")
        with pytest.raises(NotFoundError):
            await house.task(key, appkey)


async def test_lists_come_in_order_of_creation_one_page_at_a_time(house: House) -> None:
    async with house.running():
        for key, appkeys in {"c": [APP], "a": [APP, OTHER_APP], "b": [OTHER_APP], "d": [APP]}.items():
            await house.create(key, *(push(1, appkey) for appkey in appkeys))
            house.clock.move(1)
        await house.create("e")
        await house.create("A")

        assert await listed(house, APP) == ["c", "a", "d", "A", "e"]
        assert await listed(house, APP, descending=True) == ["e", "A", "d", "a", "c"]
        assert await listed(house, APP, OTHER_APP) == ["c", "a", "b", "d", "A", "e"]
        assert await listed(house, APP, offset=1, limit=2) == ["a", "d"]
        assert await listed(house, APP, offset=5) == []
        assert await listed(house, "1999999999") == []
        assert await listed(house) == []
        assert (await page(house, APP, OTHER_APP, offset=2, limit=1)).total == 6
        assert (await page(house, OTHER_APP, offset=0, limit=1)).total == 2


async def test_a_cancelled_task_is_never_sent(house: House) -> None:
    async with house.running():
        await house.create("t", push(1))
        await house.create("witness", push(2))
        command = await house.cancel("t")
        task = await house.task("t")
        assert await house.status("t") == "CANCELLED"
        assert task.cancelled_by_event_id == command

        house.clock.move(60)
        await house.until_sent(1)
        assert [one.send.msgid for one in await house.sent_pushes()] == [2]
    await assert_replays(house)


async def test_of_two_cancels_the_first_is_the_one(house: House) -> None:
    async with house.running():
        await house.create("t")
        first, second = await asyncio.gather(house.cancel("t"), house.cancel("t"))
        assert (await house.task("t")).cancelled_by_event_id == first != second


async def test_a_cancel_after_the_sending_is_too_late(house: House) -> None:
    async with house.running():
        await house.create("t", in_s=1)
        house.clock.move(1)
        await house.until_sent(1)
        await house.cancel("t")
        assert await house.status("t") == "SENT"
        assert await house.facts("cancelled") == []


async def test_a_cancel_by_another_app_changes_nothing(house: House) -> None:
    async with house.running():
        await house.create("t")
        await house.cancel("t", OTHER_APP)
        assert await house.status("t") == "UNSENT"


async def test_a_task_that_fell_due_is_shown_as_sent_and_cannot_be_cancelled(house: House) -> None:
    """Its push cannot be appended yet, because the registry does not answer."""
    async with house.running():
        await house.create("t", push(1, audience=Audience(tokens=Tokens(tokens=["x"]))), in_s=0)
        await house.create("witness", push(2), in_s=0)
        await house.until_sent(1)
        await house.cancel("t")
        assert await house.status("t") == "SENT"
        assert await house.facts("cancelled") == []
        assert [one.send.msgid for one in await house.sent_pushes()] == [2]


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancel_and_a_due_moment_at_the_same_time(house: House, cancel_first: bool) -> None:
    """Whichever comes first into `tasks` decides; both never happen, and the answer says which."""
    async with house.running():
        for n in range(20):
            await house.create(f"t{n}", push(n + 1), in_s=60)
        if cancel_first:
            cancels = [asyncio.create_task(house.cancel(f"t{n}")) for n in range(20)]
            await asyncio.sleep(0)
            house.clock.move(60)
        else:
            house.clock.move(60)
            await asyncio.sleep(0)
            cancels = [asyncio.create_task(house.cancel(f"t{n}")) for n in range(20)]
        commands = await asyncio.gather(*cancels)
        tasks = [await house.task(f"t{n}") for n in range(20)]
        won = {n for n in range(20) if tasks[n].cancelled_by_event_id == commands[n]}
        await house.until_sent(20 - len(won))
        await house.create("witness", push(99), in_s=0)
        await house.until_sent(21 - len(won))

        assert {one.send.msgid - 1 for one in await house.sent_pushes()} - {98} == set(range(20)) - won
        assert {fact.task_key for fact in await house.facts("cancelled")} == {f"t{n}" for n in won}
    await assert_replays(house)
