"""Tasks are sent exactly once, when their moment has come, over restarts and crashes."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from services.runtime.log.port import Partition
from services.runtime.projection import replay
from services.scheduling.main import open_state
from tests.roles.scheduling.conftest import OTHER_APP, House, push


def is_push(message: Any) -> bool:
    return bool(message.DESCRIPTOR.name == "PushCommand")


def is_fact(kind: str) -> Callable[[Any], bool]:
    return lambda message: message.DESCRIPTOR.name == "TaskFact" and message.WhichOneof("fact") == kind


async def assert_sent_once(house: House, key: str, *msgids: int) -> None:
    assert await house.status(key) == "SENT"
    pushes = [command for command in await house.sent_pushes() if command.send.task_key == key]
    assert {command.send.msgid for command in pushes} == set(msgids)
    assert len({command.meta.event_id for command in pushes}) == len(msgids), "a repeat kept its event id"
    for kind in ("scheduled", "fell_due", "sent"):
        assert len([fact for fact in await house.facts(kind) if fact.task_key == key]) == 1, kind


async def assert_replays(house: House) -> None:
    """The live state equals one folded from the log."""
    ends = await house.log.ends(Partition("tasks", number) for number in range(house.settings.partitions))
    verdict = await replay.verify(
        lambda directory, log: open_state(house.settings, directory, log),
        house.settings.state_dir("scheduling"),
        house.log,
        ends,
        lambda count: None,
    )
    assert verdict.equal


async def test_a_task_is_sent_when_due_and_not_before(house: House) -> None:
    async with house.running():
        await house.create("later", push(2), in_s=120)
        await house.create("sooner", push(1), in_s=60)
        house.clock.move(59.999)
        await house.create("another", push(3), in_s=600)
        assert await house.sent_pushes() == []

        house.clock.move(0.001)
        await house.until_sent(1)

        await assert_sent_once(house, "sooner", 1)
        assert await house.status("later") == "UNSENT"
        (command,) = await house.sent_pushes()
        assert command.meta.writer == "scheduling"
        assert command.meta.origin.door == "v2"
        assert command.send.message.content == "message 1"
    await assert_replays(house)


async def test_a_task_for_two_apps_sends_both_pushes(house: House) -> None:
    async with house.running():
        await house.create("t", push(1), push(2, OTHER_APP))
        house.clock.move(60)
        await house.until_sent(1)
        await assert_sent_once(house, "t", 1, 2)


async def test_a_task_that_is_due_already_is_sent_at_once(house: House) -> None:
    async with house.running():
        await house.create("t", in_s=-5)
        await house.until_sent(1)
        await assert_sent_once(house, "t", 1)


async def test_a_new_task_that_is_due_before_the_others_is_not_overslept(house: House) -> None:
    async with house.running():
        await house.create("later", push(1), in_s=3600)
        await house.create("sooner", push(2), in_s=1)
        house.clock.move(1)
        await house.until_sent(1)
        await assert_sent_once(house, "sooner", 2)


async def test_many_tasks_of_one_minute_are_all_sent_once(house: House) -> None:
    count = 1200
    async with house.running():
        await asyncio.gather(*(house.create(f"t{n}", push(n + 1), settle=False) for n in range(count)))
        await house.create("last", push(count + 1))
        house.clock.move(60)
        await house.until_sent(count + 1)

        ids = [command.send.msgid for command in await house.sent_pushes()]
        assert sorted(ids) == list(range(1, count + 2))
        assert await house.status("t7") == "SENT"
    await assert_replays(house)


async def test_what_fell_due_while_nothing_ran_is_sent_at_the_next_start_once(house: House) -> None:
    async with house.running():
        await house.create("t")
    house.clock.move(3600)
    for _ in range(2):
        async with house.running():
            await house.until_sent(1)
            await assert_sent_once(house, "t", 1)
    assert len(await house.sent_pushes()) == 1
    await assert_replays(house)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", [is_fact("fell_due"), is_push, is_fact("sent")], ids=["fell_due", "push", "sent"])
@pytest.mark.parametrize("with_cancel", [False, True], ids=["plain", "cancelled meanwhile"])
async def test_a_crash_while_sending(
    house: House, point: Callable[[Any], bool], after: bool, with_cancel: bool
) -> None:
    house.log.when, house.log.after = point, after
    async with house.running():
        await house.create("t", push(1), push(2))
        house.clock.move(60)
        async with asyncio.timeout(5):
            await house.log.died.wait()
    if with_cancel:
        await house.cancel("t", settle=False)
    decided = bool(await house.facts("fell_due"))

    async with house.running():
        if with_cancel and not decided:
            assert await house.status("t") == "CANCELLED"
            assert await house.sent_pushes() == []
        else:
            await house.until_sent(1)
            await house.create("next", push(9), in_s=0)
            await house.until_sent(2)
            await assert_sent_once(house, "t", 1, 2)
    await assert_replays(house)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["scheduled", "cancelled"])
async def test_a_crash_while_deciding(house: House, kind: str, after: bool) -> None:
    house.log.when, house.log.after = is_fact(kind), after
    async with house.running():
        await house.create("t", settle=False)
        await house.cancel("t", settle=False)
        async with asyncio.timeout(5):
            await house.log.died.wait()

    async with house.running():
        await house.create("witness", push(2))
        assert await house.status("t") == "CANCELLED"
        house.clock.move(60)
        await house.until_sent(1)
        assert [command.send.msgid for command in await house.sent_pushes()] == [2]
        assert len([fact for fact in await house.facts("scheduled") if fact.task_key == "t"]) == 1
        assert len(await house.facts("cancelled")) == 1
    await assert_replays(house)


async def test_a_state_that_lost_its_last_transactions_repeats_nothing(house: House) -> None:
    """A power cut may take the newest rows and offsets; the last fact in the log is then one the timer made."""
    state = house.settings.state_dir("scheduling")
    async with house.running():
        await house.create("first")
    shutil.copytree(state, house.directory / "older")
    async with house.running():
        await house.create("t", push(2), in_s=1)
        house.clock.move(1)
        await house.until_sent(1)
    shutil.rmtree(state)
    shutil.copytree(house.directory / "older", state)

    async with house.running():
        await house.create("witness", push(3))
        await assert_sent_once(house, "t", 2)
        assert len(await house.sent_pushes()) == 1
    await assert_replays(house)


async def test_a_state_that_was_deleted_comes_back_from_the_log(house: House) -> None:
    async with house.running():
        await house.create("sent", push(1), in_s=1)
        await house.create("waiting", push(2))
        house.clock.move(1)
        await house.until_sent(1)
    shutil.rmtree(house.settings.state_dir("scheduling"))

    async with house.running():
        assert await house.status("sent") == "SENT"
        assert await house.status("waiting") == "UNSENT"
        house.clock.move(60)
        await house.until_sent(2)
    assert [command.send.msgid for command in await house.sent_pushes()] == [1, 2]
