"""A page of tasks over several scheduling instances equals the page of one instance, at any depth."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

import edge.core.tasks
from edge.core.tasks import TaskCalls
from protos.push.v1.push_pb2 import Audience, Everyone, SendPush
from protos.runtime.v1.log_pb2 import Meta, Position
from protos.scheduling.v1.scheduling_pb2 import CancelTask, CreateTask, ListTasksRequest, TaskCommand
from services.domain.apps import AppDirectory
from services.domain.command_writer import CommandWriter
from services.domain.ids import event_id
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.topics import TASK_COMMANDS, TOPICS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.log.topics import partition_of
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Server
from services.process.clock import ManualClock
from services.replica.peers import Peers
from services.scheduling.main import build
from services.scheduling.settings import SchedulingSettings
from services.scheduling.state import ENDED_KEPT_MS
from testkit.edge.role import NOW_MS, PARTITIONS
from testkit.services import running_services

SHARDS = 3
APP = "1000000001"


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[RoleContext]:
    log = SqliteLog(tmp_path / "events.db", TOPICS)
    servers = [LocalServer() for _ in range(SHARDS)]
    channels = [server.channel() for server in servers]
    peers = Peers({"scheduling": channels, "registry": [], "delivery": []}, TOPICS)
    context = RoleContext(log, ManualClock(NOW_MS), peers, MasterKey(bytes(32)), AppDirectory(log))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(log.close)
        for shard, server in enumerate(servers):
            settings = SchedulingSettings(data_dir=str(tmp_path), partitions=PARTITIONS, shard=shard, shards=SHARDS)
            role = build(settings, context)
            for add in role.servicers:
                add(cast(Server, server))
            await stack.enter_async_context(running_services(role.services))
        yield context


async def create(context: RoleContext, count: int) -> list[str]:
    """Create tasks, many with the same time, and return their keys in the order of lists."""
    commands = []
    for number in range(count):
        key = f"{number * 7919 % count:05}"
        push = SendPush(msgid=number + 1, id_count=1, appkey=APP, audience=Audience(everyone=Everyone()))
        command = TaskCommand(
            meta=Meta(event_id=event_id(), time_ms=NOW_MS + number // 5),
            task_key=key,
            create=CreateTask(pushes=[push], due_ms=due_ms(number)),
        )
        commands.append(command)
    await append(context, commands)
    places = [(NOW_MS + number // 5, f"{number * 7919 % count:05}") for number in range(count)]
    return [key for _, key in sorted(places)]


def due_ms(number: int) -> int:
    return NOW_MS + 10**9 + number * 31 % 17


async def append(context: RoleContext, commands: Sequence[TaskCommand]) -> None:
    """Append the commands, and wait until they are applied."""
    new_records = []
    for command in commands:
        key = command.task_key.encode()
        partition = partition_of(key, PARTITIONS)
        new_records.append(NewRecord(TASK_COMMANDS.name, partition, key, command.SerializeToString()))
    offsets = await context.log.append(new_records)
    positions = [
        Position(topic=new_record.topic, partition=new_record.partition, offset=offset)
        for new_record, offset in zip(new_records, offsets, strict=True)
    ]
    await context.peers.wait_applied(positions)


@pytest.mark.parametrize("read_through", [0, 20, 500])
@pytest.mark.parametrize("descending", [False, True])
async def test_every_page(
    context: RoleContext, monkeypatch: pytest.MonkeyPatch, read_through: int, descending: bool
) -> None:
    monkeypatch.setattr(edge.core.tasks, "_READ_THROUGH", read_through)
    keys = await create(context, 211)
    wanted = keys[::-1] if descending else keys
    tasks = tasks_of(context)
    for page_size in (1, 10, 50):
        for page_num in (1, 2, 4, 10, 20, 21, 22, 211, 212):
            page = await tasks.list([APP], descending=descending, page_num=page_num, page_size=page_size)
            start = (page_num - 1) * page_size
            assert [task.task_key for task in page.tasks] == wanted[start : start + page_size]
            assert page.total == 211


@pytest.mark.parametrize("read_through", [0, 500])
async def test_every_page_with_the_waiting_tasks_first(
    context: RoleContext, monkeypatch: pytest.MonkeyPatch, read_through: int
) -> None:
    monkeypatch.setattr(edge.core.tasks, "_READ_THROUGH", read_through)
    count = 97
    await create(context, count)
    numbers = {f"{number * 7919 % count:05}": number for number in range(count)}
    ended = {key for key, number in numbers.items() if number % 3 == 0}
    await append(
        context,
        [
            TaskCommand(meta=Meta(event_id=event_id(), time_ms=NOW_MS), task_key=key, cancel=CancelTask(appkeys=[APP]))
            for key in ended
        ],
    )
    waiting = sorted(numbers.keys() - ended, key=lambda key: (due_ms(numbers[key]), key))
    wanted = waiting + sorted(ended, key=lambda key: (-(numbers[key] // 5), key))
    tasks = tasks_of(context)
    for page_size in (1, 10, 50):
        for page_num in (1, 2, 7, 8, 64, 65, 66, 97, 98):
            page = await tasks.waiting_first([APP], page_num=page_num, page_size=page_size)
            start = (page_num - 1) * page_size
            assert [task.task_key for task in page.tasks] == wanted[start : start + page_size]
            assert page.total == count


@pytest.mark.parametrize("descending", [False, True])
async def test_a_page_has_the_tasks_that_follow_those_which_are_deleted_while_it_is_read(
    context: RoleContext, monkeypatch: pytest.MonkeyPatch, descending: bool
) -> None:
    """A new task deletes the ended ones of its partition that were due over 35 days ago, the earliest first."""
    keys = await create(context, 40)
    gone = [key for key in keys if partition_of(key.encode(), PARTITIONS) == 0]
    assert gone
    cancels = [TaskCommand(meta=meta(0), task_key=key, cancel=CancelTask(appkeys=[APP])) for key in gone]
    await append(context, cancels)
    tasks = tasks_of(context)
    read_keys = tasks._keys
    new = next(key for key in map(str, range(100)) if partition_of(key.encode(), PARTITIONS) == 0)

    async def keys_then_new_task(query: ListTasksRequest, skip: int, count: int) -> Sequence[str]:
        found = await read_keys(query, skip, count)
        after_ms = 10**9 + ENDED_KEPT_MS * 2
        push = SendPush(msgid=10**6, id_count=1, appkey=APP, audience=Audience(everyone=Everyone()))
        task = CreateTask(pushes=[push], due_ms=NOW_MS + after_ms + 1)
        await append(context, [TaskCommand(meta=meta(after_ms), task_key=new, create=task)])
        return found

    monkeypatch.setattr(tasks, "_keys", keys_then_new_task)
    left = [*(key for key in keys if key not in gone), new]
    page = await tasks.list([APP], descending=descending, page_num=1, page_size=30)
    assert [task.task_key for task in page.tasks] == (left[::-1] if descending else left)[:30]
    assert page.total == len(left)


async def test_tasks_that_are_deleted_whenever_a_page_is_read_are_left_out(
    context: RoleContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await create(context, 5)
    tasks = tasks_of(context)

    async def with_a_deleted_one(query: ListTasksRequest, skip: int, count: int) -> Sequence[str]:
        return ["deleted", *keys]

    monkeypatch.setattr(tasks, "_keys", with_a_deleted_one)
    page = await tasks.waiting_first([APP], page_num=1, page_size=50)
    assert [task.task_key for task in page.tasks] == keys


def meta(after_ms: int) -> Meta:
    return Meta(event_id=event_id(), time_ms=NOW_MS + after_ms)


def tasks_of(context: RoleContext) -> TaskCalls:
    writer = CommandWriter("edge", context.log, context.peers, context.clock, PARTITIONS)
    return TaskCalls(writer, context.peers, PARTITIONS)
