"""Tasks are sent exactly once when they fall due, across restarts and crashes."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from services.runtime.log.port import Partition
from services.runtime.projection import replay
from services.scheduling.main import open_state
from tests.roles.scheduling.conftest import OTHER_APP, Installation, push


def is_push(message: Any) -> bool:
    return bool(message.DESCRIPTOR.name == "PushCommand")


def is_fact(kind: str) -> Callable[[Any], bool]:
    return lambda message: message.DESCRIPTOR.name == "TaskFact" and message.WhichOneof("fact") == kind


async def assert_sent_once(installation: Installation, key: str, *msgids: int) -> None:
    assert await installation.status(key) == "SENT"
    pushes = [command for command in await installation.sent_pushes() if command.send.task_key == key]
    assert {command.send.msgid for command in pushes} == set(msgids)
    assert len({command.meta.event_id for command in pushes}) == len(msgids), "repeats have the same event id"
    for kind in ("scheduled", "fell_due", "sent"):
        assert len([fact for fact in await installation.facts(kind) if fact.task_key == key]) == 1, kind


async def assert_replays(installation: Installation) -> None:
    """The live state equals one folded from the log."""
    ends = await installation.log.ends(Partition("tasks", number) for number in range(installation.settings.partitions))
    verdict = await replay.verify(
        lambda directory, log: open_state(installation.settings, directory, log),
        installation.settings.state_dir("scheduling"),
        replay.ReplaySource(installation.log, ends),
    )
    assert verdict.equal


async def test_a_task_is_sent_when_due_and_not_before(installation: Installation) -> None:
    async with installation.running():
        await installation.create("later", push(2), in_s=120)
        await installation.create("sooner", push(1), in_s=60)
        installation.clock.move(59.999)
        await installation.create("another", push(3), in_s=600)
        assert await installation.sent_pushes() == []

        installation.clock.move(0.001)
        await installation.until_sent(1)

        await assert_sent_once(installation, "sooner", 1)
        assert await installation.status("later") == "UNSENT"
        (command,) = await installation.sent_pushes()
        assert command.meta.writer == "scheduling"
        assert command.meta.origin.interface == "v2"
        assert command.send.message.content == "message 1"
    await assert_replays(installation)


async def test_a_task_for_two_apps_sends_both_pushes(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t", push(1), push(2, OTHER_APP))
        installation.clock.move(60)
        await installation.until_sent(1)
        await assert_sent_once(installation, "t", 1, 2)


async def test_a_task_that_is_due_already_is_sent_at_once(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t", in_s=-5)
        await installation.until_sent(1)
        await assert_sent_once(installation, "t", 1)


async def test_a_new_task_that_is_due_before_the_others_is_sent_in_time(installation: Installation) -> None:
    async with installation.running():
        await installation.create("later", push(1), in_s=3600)
        await installation.create("sooner", push(2), in_s=1)
        installation.clock.move(1)
        await installation.until_sent(1)
        await assert_sent_once(installation, "sooner", 2)


async def test_many_tasks_of_one_minute_are_all_sent_once(installation: Installation) -> None:
    count = 1200
    async with installation.running():
        await asyncio.gather(*(installation.create(f"t{n}", push(n + 1), wait=False) for n in range(count)))
        await installation.create("last", push(count + 1))
        installation.clock.move(60)
        await installation.until_sent(count + 1)

        ids = [command.send.msgid for command in await installation.sent_pushes()]
        assert sorted(ids) == list(range(1, count + 2))
        assert await installation.status("t7") == "SENT"
    await assert_replays(installation)


async def test_a_task_that_fell_due_while_stopped_is_sent_once_at_the_next_start(installation: Installation) -> None:
    async with installation.running():
        await installation.create("t")
    installation.clock.move(3600)
    for _ in range(2):
        async with installation.running():
            await installation.until_sent(1)
            await assert_sent_once(installation, "t", 1)
    assert len(await installation.sent_pushes()) == 1
    await assert_replays(installation)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", [is_fact("fell_due"), is_push, is_fact("sent")], ids=["fell_due", "push", "sent"])
@pytest.mark.parametrize("with_cancel", [False, True], ids=["plain", "cancelled in between"])
async def test_a_crash_while_sending(
    installation: Installation, point: Callable[[Any], bool], after: bool, with_cancel: bool
) -> None:
    installation.log.when, installation.log.after = point, after
    async with installation.running():
        await installation.create("t", push(1), push(2))
        installation.clock.move(60)
        async with asyncio.timeout(60):
            await installation.log.died.wait()
    if with_cancel:
        await installation.cancel("t", wait=False)
    decided = bool(await installation.facts("fell_due"))

    async with installation.running():
        if with_cancel and not decided:
            assert await installation.status("t") == "CANCELLED"
            assert await installation.sent_pushes() == []
        else:
            await installation.until_sent(1)
            await installation.create("next", push(9), in_s=0)
            await installation.until_sent(2)
            await assert_sent_once(installation, "t", 1, 2)
    await assert_replays(installation)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["scheduled", "cancelled"])
async def test_a_crash_while_deciding(installation: Installation, kind: str, after: bool) -> None:
    installation.log.when, installation.log.after = is_fact(kind), after
    async with installation.running():
        await installation.create("t", wait=False)
        await installation.cancel("t", wait=False)
        async with asyncio.timeout(60):
            await installation.log.died.wait()

    async with installation.running():
        await installation.create("witness", push(2))
        assert await installation.status("t") == "CANCELLED"
        installation.clock.move(60)
        await installation.until_sent(1)
        assert [command.send.msgid for command in await installation.sent_pushes()] == [2]
        assert len([fact for fact in await installation.facts("scheduled") if fact.task_key == "t"]) == 1
        assert len(await installation.facts("cancelled")) == 1
    await assert_replays(installation)


async def test_a_state_that_lost_its_last_transactions_repeats_nothing(installation: Installation) -> None:
    """A power cut may lose the newest rows and offsets; the last fact in the log is then one of the timer."""
    state = installation.settings.state_dir("scheduling")
    async with installation.running():
        await installation.create("first")
    shutil.copytree(state, installation.directory / "older")
    async with installation.running():
        await installation.create("t", push(2), in_s=1)
        installation.clock.move(1)
        await installation.until_sent(1)
    shutil.rmtree(state)
    shutil.copytree(installation.directory / "older", state)

    async with installation.running():
        await installation.create("witness", push(3))
        await assert_sent_once(installation, "t", 2)
        assert len(await installation.sent_pushes()) == 1
    await assert_replays(installation)


async def test_a_deleted_state_is_rebuilt_from_the_log(installation: Installation) -> None:
    async with installation.running():
        await installation.create("sent", push(1), in_s=1)
        await installation.create("waiting", push(2))
        installation.clock.move(1)
        await installation.until_sent(1)
    shutil.rmtree(installation.settings.state_dir("scheduling"))

    async with installation.running():
        assert await installation.status("sent") == "SENT"
        assert await installation.status("waiting") == "UNSENT"
        installation.clock.move(60)
        await installation.until_sent(2)
    assert [command.send.msgid for command in await installation.sent_pushes()] == [1, 2]
