"""Look-ups of tasks, and cancels."""

import asyncio

import pytest

from protos.push.v1.push_pb2 import Audience, Tokens
from protos.scheduling.v1.scheduling_pb2 import ListTasksRequest, ListTasksResponse
from services.runtime.errors import NotFoundError
from tests.roles.scheduling.conftest import APP, OTHER_APP, START_MS, Installation, push
from tests.roles.scheduling.test_firing import assert_replays


async def listed(
    installation: Installation, *appkeys: str, offset: int = 0, limit: int = 50, descending: bool = False
) -> list[str]:
    answer = await page(installation, *appkeys, offset=offset, limit=limit, descending=descending)
    return [task.task_key for task in answer.tasks]


async def page(
    installation: Installation, *appkeys: str, offset: int, limit: int, descending: bool = False
) -> ListTasksResponse:
    request = ListTasksRequest(appkeys=appkeys, descending=descending, offset=offset, limit=limit)
    return await installation.stub.ListTasks(request)  # type: ignore[no-any-return]


async def test_a_task_is_returned_as_it_was_created(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t", push(1), push(2, OTHER_APP), in_s=90)
        task = await installation.task("t", OTHER_APP)
        assert (task.task_key, task.created_ms, task.due_ms) == ("t", START_MS, START_MS + 90_000)
        assert [one.message.content for one in task.pushes] == ["message 1", "message 2"]
        assert await installation.status("t") == "UNSENT"
        assert task.cancelled_by_event_id == b""


@pytest.mark.parametrize(("key", "appkey"), [("unknown", APP), ("t", OTHER_APP)])
async def test_a_task_of_another_app_is_not_found(installation: Installation, key: str, appkey: str) -> None:
    async with installation.running():
        await installation.create("t")
        with pytest.raises(NotFoundError):
            await installation.task(key, appkey)


async def test_tasks_are_listed_by_creation_time_in_pages(installation: Installation) -> None:
    async with installation.running():
        for key, appkeys in {"c": [APP], "a": [APP, OTHER_APP], "b": [OTHER_APP], "d": [APP]}.items():
            await installation.create(key, *(push(1, appkey) for appkey in appkeys))
            installation.clock.move(1)
        await installation.create("e")
        await installation.create("A")

        assert await listed(installation, APP) == ["c", "a", "d", "A", "e"]
        assert await listed(installation, APP, descending=True) == ["e", "A", "d", "a", "c"]
        assert await listed(installation, APP, OTHER_APP) == ["c", "a", "b", "d", "A", "e"]
        assert await listed(installation, APP, offset=1, limit=2) == ["a", "d"]
        assert await listed(installation, APP, offset=5) == []
        assert await listed(installation, "1999999999") == []
        assert await listed(installation) == []
        assert (await page(installation, APP, OTHER_APP, offset=2, limit=1)).total == 6
        assert (await page(installation, OTHER_APP, offset=0, limit=1)).total == 2


async def test_waiting_tasks_are_listed_before_the_others_by_due_time(installation: Installation) -> None:
    async with installation.running():
        for key, in_s in {"sent": 10, "late": 900, "soon": 60, "also-soon": 60, "cancelled": 100}.items():
            await installation.create(key, push(1), *([push(2, OTHER_APP)] if key == "soon" else []), in_s=in_s)
            installation.clock.move(0.001)
        await installation.create("foreign", push(3, OTHER_APP), in_s=30)
        await installation.cancel("cancelled")
        installation.clock.move(10)
        await installation.until_sent(1)

        wanted = ["soon", "also-soon", "late", "cancelled", "sent"]
        assert await waiting_first(installation, APP) == wanted
        for limit in range(1, 6):
            pages = [await waiting_first(installation, APP, offset=offset, limit=limit) for offset in range(6)]
            assert pages == [wanted[offset : offset + limit] for offset in range(6)]
        assert await waiting_first(installation, OTHER_APP) == ["foreign", "soon"]
        assert await waiting_first(installation, APP, OTHER_APP, limit=3) == ["foreign", "soon", "also-soon"]
        assert await waiting_first(installation) == []


async def waiting_first(installation: Installation, *appkeys: str, offset: int = 0, limit: int = 50) -> list[str]:
    request = ListTasksRequest(appkeys=appkeys, waiting_first=True, offset=offset, limit=limit)
    return [task.task_key for task in (await installation.stub.ListTasks(request)).tasks]


async def test_a_cancelled_task_is_never_sent(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t", push(1))
        await installation.create("witness", push(2))
        command = await installation.cancel("t")
        task = await installation.task("t")
        assert await installation.status("t") == "CANCELLED"
        assert task.cancelled_by_event_id == command

        installation.clock.move(60)
        await installation.until_sent(1)
        assert [one.send.msgid for one in await installation.sent_pushes()] == [2]
    await assert_replays(installation)


async def test_of_two_cancels_only_the_first_has_an_effect(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t")
        first, second = await asyncio.gather(installation.cancel("t"), installation.cancel("t"))
        assert (await installation.task("t")).cancelled_by_event_id == first != second


async def test_a_cancel_after_sending_changes_nothing(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t", in_s=1)
        installation.clock.move(1)
        await installation.until_sent(1)
        await installation.cancel("t")
        assert await installation.status("t") == "SENT"
        assert await installation.facts("cancelled") == []


async def test_a_cancel_by_another_app_changes_nothing(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t")
        await installation.cancel("t", OTHER_APP)
        assert await installation.status("t") == "UNSENT"


async def test_a_task_that_fell_due_has_status_sent_and_cannot_be_cancelled(installation: Installation) -> None:
    """Its push cannot be appended yet, because the registry does not answer."""
    async with installation.running():
        await installation.create("t", push(1, audience=Audience(tokens=Tokens(tokens=["x"]))), in_s=0)
        await installation.create("witness", push(2), in_s=0)
        await installation.until_sent(1)
        await installation.cancel("t")
        assert await installation.status("t") == "SENT"
        assert await installation.facts("cancelled") == []
        assert [one.send.msgid for one in await installation.sent_pushes()] == [2]


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancel_and_a_due_moment_at_the_same_time(installation: Installation, cancel_first: bool) -> None:
    """The fact that is first in `tasks` decides; never do both apply, and the answer says which one did."""
    async with installation.running():
        for n in range(20):
            await installation.create(f"t{n}", push(n + 1), in_s=60)
        if cancel_first:
            cancels = [asyncio.create_task(installation.cancel(f"t{n}")) for n in range(20)]
            await asyncio.sleep(0)
            installation.clock.move(60)
        else:
            installation.clock.move(60)
            await asyncio.sleep(0)
            cancels = [asyncio.create_task(installation.cancel(f"t{n}")) for n in range(20)]
        commands = await asyncio.gather(*cancels)
        tasks = [await installation.task(f"t{n}") for n in range(20)]
        won = {n for n in range(20) if tasks[n].cancelled_by_event_id == commands[n]}
        await installation.until_sent(20 - len(won))
        await installation.create("witness", push(99), in_s=0)
        await installation.until_sent(21 - len(won))

        assert {one.send.msgid - 1 for one in await installation.sent_pushes()} - {98} == set(range(20)) - won
        assert {fact.task_key for fact in await installation.facts("cancelled")} == {f"t{n}" for n in won}
    await assert_replays(installation)
