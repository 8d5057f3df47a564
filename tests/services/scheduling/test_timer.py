"""Tasks are sent exactly once when they fall due, across restarts and crashes."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from services.domain.topics import ERASURES_PARTITION
from services.log.port import Partition
from services.replica import replay
from services.scheduling.main import open_state
from tests.services.scheduling.conftest import OTHER_APP, SchedulingHarness, push


def is_push(message: Any) -> bool:
    return bool(message.DESCRIPTOR.name == "PushCommand")


def is_fact(kind: str) -> Callable[[Any], bool]:
    return lambda message: message.DESCRIPTOR.name == "TaskFact" and message.WhichOneof("fact") == kind


async def assert_sent_once(harness: SchedulingHarness, key: str, *msgids: int) -> None:
    assert await harness.status(key) == "SENT"
    pushes = [command for command in await harness.sent_pushes() if command.send.task_key == key]
    assert {command.send.msgid for command in pushes} == set(msgids)
    assert len({command.meta.event_id for command in pushes}) == len(msgids), "repeats have the same event id"
    for kind in ("scheduled", "fell_due", "sent"):
        assert len([fact for fact in await harness.facts(kind) if fact.task_key == key]) == 1, kind


async def assert_replays(harness: SchedulingHarness) -> None:
    """The live state equals one folded from the log."""
    tasks = [Partition("tasks", number) for number in range(harness.settings.partitions)]
    ends = await harness.log.ends([*tasks, ERASURES_PARTITION])
    verdict = await replay.verify(
        lambda directory, log: open_state(harness.settings, directory, log),
        harness.settings.state_dir("scheduling"),
        replay.ReplaySource(harness.log, ends),
    )
    assert verdict.equal


async def test_a_task_is_sent_when_due_and_not_before(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("later", push(2), in_s=120)
        await harness.create("sooner", push(1), in_s=60)
        harness.clock.move(59.999)
        await harness.create("another", push(3), in_s=600)
        assert await harness.sent_pushes() == []

        harness.clock.move(0.001)
        await harness.until_sent(1)

        await assert_sent_once(harness, "sooner", 1)
        assert await harness.status("later") == "UNSENT"
        (command,) = await harness.sent_pushes()
        assert command.meta.writer == "scheduling"
        assert command.meta.origin.interface == "v2"
        assert command.send.message.content == "message 1"
    await assert_replays(harness)


async def test_a_task_for_two_apps_sends_both_pushes(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t", push(1), push(2, OTHER_APP))
        harness.clock.move(60)
        await harness.until_sent(1)
        await assert_sent_once(harness, "t", 1, 2)


async def test_a_task_that_is_due_already_is_sent_at_once(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t", in_s=-5)
        await harness.until_sent(1)
        await assert_sent_once(harness, "t", 1)


async def test_a_new_task_that_is_due_before_the_others_is_sent_in_time(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("later", push(1), in_s=3600)
        await harness.create("sooner", push(2), in_s=1)
        harness.clock.move(1)
        await harness.until_sent(1)
        await assert_sent_once(harness, "sooner", 2)


async def test_many_tasks_of_one_minute_are_all_sent_once(harness: SchedulingHarness) -> None:
    count = 1200
    async with harness.running():
        await asyncio.gather(*(harness.create(f"t{n}", push(n + 1), wait=False) for n in range(count)))
        await harness.create("last", push(count + 1))
        harness.clock.move(60)
        await harness.until_sent(count + 1)

        ids = [command.send.msgid for command in await harness.sent_pushes()]
        assert sorted(ids) == list(range(1, count + 2))
        assert await harness.status("t7") == "SENT"
    await assert_replays(harness)


async def test_a_task_that_fell_due_while_stopped_is_sent_once_at_the_next_start(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("t")
    harness.clock.move(3600)
    for _ in range(2):
        async with harness.running():
            await harness.until_sent(1)
            await assert_sent_once(harness, "t", 1)
    assert len(await harness.sent_pushes()) == 1
    await assert_replays(harness)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", [is_fact("fell_due"), is_push, is_fact("sent")], ids=["fell_due", "push", "sent"])
@pytest.mark.parametrize("with_cancel", [False, True], ids=["plain", "cancelled in between"])
async def test_a_task_is_sent_once_or_cancelled_when_scheduling_crashes_while_it_sends(
    harness: SchedulingHarness, point: Callable[[Any], bool], after: bool, with_cancel: bool
) -> None:
    harness.log.when, harness.log.after = point, after
    async with harness.running():
        await harness.create("t", push(1), push(2))
        harness.clock.move(60)
        async with asyncio.timeout(60):
            await harness.log.died.wait()
    if with_cancel:
        await harness.cancel("t", wait=False)
    decided = bool(await harness.facts("fell_due"))

    async with harness.running():
        if with_cancel and not decided:
            assert await harness.status("t") == "CANCELLED"
            assert await harness.sent_pushes() == []
        else:
            await harness.until_sent(1)
            await harness.create("next", push(9), in_s=0)
            await harness.until_sent(2)
            await assert_sent_once(harness, "t", 1, 2)
    await assert_replays(harness)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["scheduled", "cancelled"])
async def test_a_command_is_decided_once_when_scheduling_crashes_while_it_decides(
    harness: SchedulingHarness, kind: str, after: bool
) -> None:
    harness.log.when, harness.log.after = is_fact(kind), after
    async with harness.running():
        await harness.create("t", wait=False)
        await harness.cancel("t", wait=False)
        async with asyncio.timeout(60):
            await harness.log.died.wait()

    async with harness.running():
        await harness.create("witness", push(2))
        assert await harness.status("t") == "CANCELLED"
        harness.clock.move(60)
        await harness.until_sent(1)
        assert [command.send.msgid for command in await harness.sent_pushes()] == [2]
        assert len([fact for fact in await harness.facts("scheduled") if fact.task_key == "t"]) == 1
        assert len(await harness.facts("cancelled")) == 1
    await assert_replays(harness)


async def test_a_state_that_lost_its_last_transactions_repeats_nothing(harness: SchedulingHarness) -> None:
    """A power cut may lose the newest rows and offsets; the last fact in the log is then one of the timer."""
    state = harness.settings.state_dir("scheduling")
    async with harness.running():
        await harness.create("first")
    shutil.copytree(state, harness.directory / "older")
    async with harness.running():
        await harness.create("t", push(2), in_s=1)
        harness.clock.move(1)
        await harness.until_sent(1)
    shutil.rmtree(state)
    shutil.copytree(harness.directory / "older", state)

    async with harness.running():
        await harness.create("witness", push(3))
        await assert_sent_once(harness, "t", 2)
        assert len(await harness.sent_pushes()) == 1
    await assert_replays(harness)


async def test_a_deleted_state_is_rebuilt_from_the_log(harness: SchedulingHarness) -> None:
    async with harness.running():
        await harness.create("sent", push(1), in_s=1)
        await harness.create("waiting", push(2))
        harness.clock.move(1)
        await harness.until_sent(1)
    shutil.rmtree(harness.settings.state_dir("scheduling"))

    async with harness.running():
        assert await harness.status("sent") == "SENT"
        assert await harness.status("waiting") == "UNSENT"
        harness.clock.move(60)
        await harness.until_sent(2)
    assert [command.send.msgid for command in await harness.sent_pushes()] == [1, 2]
