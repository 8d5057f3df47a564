"""Tasks that have ended are deleted some time after they were due; those that still wait never are."""

import itertools
from pathlib import Path

import pytest

from protos.scheduling.v1.scheduling_pb2 import ListTasksRequest, TaskFact, TaskScheduled
from services.errors import NotFoundError
from services.log.topics import partition_of
from services.replica.sqlite_store import SqliteStore
from services.scheduling.state import ENDED_KEPT_MS, Status
from services.scheduling.store import DDL, MAX_DELETED, TaskTable
from tests.services.scheduling.conftest import APP, OTHER_APP, PARTITIONS, SchedulingHarness, push
from tests.services.scheduling.test_timer import assert_replays

DUE_S = 60
KEPT_S = ENDED_KEPT_MS // 1000


def keys_of_partition(number: int, count: int) -> list[str]:
    keys = (f"task {each}" for each in itertools.count())
    return list(itertools.islice((key for key in keys if partition_of(key.encode(), PARTITIONS) == number), count))


async def listed(harness: SchedulingHarness) -> list[str]:
    answer = await harness.stub.ListTasks(ListTasksRequest(appkeys=[APP, OTHER_APP], limit=50))
    assert answer.total == len(answer.tasks)
    return [task.task_key for task in answer.tasks]


async def test_ended_tasks_are_deleted_35_days_after_they_were_due(harness: SchedulingHarness) -> None:
    sent, cancelled, waiting, before, after = keys_of_partition(0, 5)
    (elsewhere,) = keys_of_partition(1, 1)
    async with harness.running():
        await harness.create(sent, push(1), push(2, OTHER_APP), in_s=DUE_S)
        await harness.create(cancelled, in_s=DUE_S)
        await harness.create(elsewhere, in_s=DUE_S)
        await harness.create(waiting, in_s=KEPT_S * 3)
        await harness.cancel(cancelled)
        harness.clock.move(DUE_S)
        await harness.until_sent(2)

        harness.clock.move(KEPT_S - 1)
        await harness.create(before, in_s=KEPT_S * 3)
        assert await listed(harness) == [*sorted([sent, cancelled, waiting, elsewhere]), before]

        harness.clock.move(1)
        await harness.create(after, in_s=KEPT_S * 3)
        assert await listed(harness) == [*sorted([waiting, elsewhere]), before, after], "its partition had no new task"
        for key, appkey in ((sent, APP), (sent, OTHER_APP), (cancelled, APP)):
            with pytest.raises(NotFoundError):
                await harness.task(key, appkey)
        assert await harness.status(waiting) == "UNSENT"
    await assert_replays(harness)


def test_a_new_task_deletes_a_bounded_number_of_ended_ones_the_earliest_first(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks.sqlite", DDL)
    tasks = TaskTable(store.rows)
    keys = [f"{number:04d}" for number in range(MAX_DELETED + 2)]
    for number, key in enumerate(keys):
        tasks.add(0, TaskFact(task_key=key, scheduled=TaskScheduled(pushes=[push(1)], due_ms=number)))
        tasks.change(key, (Status.WAITING,), Status.CANCELLED)
    new = TaskScheduled(pushes=[push(1)], created_ms=ENDED_KEPT_MS + len(keys), due_ms=ENDED_KEPT_MS * 2)
    tasks.add(0, TaskFact(task_key="new", scheduled=new))
    assert [task.task_key for task in tasks.find_all(keys)] == keys[MAX_DELETED:]
    tasks.add(0, TaskFact(task_key="newer", scheduled=new))
    assert tasks.find_all(keys) == []
    store.close()
