"""The command writer: stamping, partitions, positions, and waiting until the roles have applied a command."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest

from protos.push.v1.push_pb2 import CancelPush, PushCommand, SendPush
from protos.registry.v1.devices_pb2 import AddStags, ClearAlias, DeviceCommand, RevokeAllKeys
from protos.runtime.v1.log_pb2 import Meta, Origin, Position
from protos.scheduling.v1.scheduling_pb2 import CancelTask, TaskCommand
from services.domain.command_writer import Command, CommandWriter, device_command, push_command, task_command
from services.domain.topics import DEVICE_COMMANDS, PUSH_COMMANDS, TASK_COMMANDS, TOPICS, decode, device_key
from services.errors import InputError
from services.log.port import MAX_RECORD_BYTES, Partition, Record
from services.log.sqlite.log import SqliteLog
from services.log.topics import partition_of
from services.process.clock import ManualClock
from services.replica.peers import Peers

PARTITIONS = 4
NOW_MS = 1_800_000_000_000
ORIGIN = Origin(interface="v2", address="10.0.0.1", request_id="r-1")


class RecordingPeers(Peers):
    """Notes the positions that a caller waits for; they count as applied once `applied` is set."""

    def __init__(self) -> None:
        super().__init__({}, TOPICS)
        self.awaited: list[Position] = []
        self.applied = asyncio.Event()

    async def wait_applied(self, positions: Iterable[Position]) -> None:
        self.awaited += positions
        await self.applied.wait()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    yield log
    await log.close()


@pytest.fixture
def peers() -> RecordingPeers:
    return RecordingPeers()


@pytest.fixture
def writer(log: SqliteLog, peers: RecordingPeers) -> CommandWriter:
    return CommandWriter("edge", log, peers, ManualClock(NOW_MS), PARTITIONS)


def clear_alias(token: str) -> Command:
    return device_command(DeviceCommand(appkey="1", token=token, clear_alias=ClearAlias()))


async def records(log: SqliteLog, topic: str) -> list[Record]:
    return (await log.select({Partition(topic, number): 0 for number in range(PARTITIONS)}, 1000)).records


async def test_a_command_is_stamped_and_stored_under_its_key(log: SqliteLog, writer: CommandWriter) -> None:
    (position,) = await writer.append([clear_alias("t")], ORIGIN)
    (record,) = await records(log, DEVICE_COMMANDS.name)
    assert (record.topic, record.partition, record.offset) == (position.topic, position.partition, position.offset)
    assert record.key == device_key("1", "t")
    assert record.partition == partition_of(record.key, PARTITIONS)
    meta = decode(record).meta
    assert len(meta.event_id) == 16
    assert (meta.writer, meta.time_ms, meta.origin) == ("edge", NOW_MS, ORIGIN)


async def test_each_command_gets_an_event_id_of_its_own_and_no_origin_unless_given(
    log: SqliteLog, writer: CommandWriter
) -> None:
    await writer.append([clear_alias("t"), clear_alias("t")])
    metas = [decode(record).meta for record in await records(log, DEVICE_COMMANDS.name)]
    assert len({meta.event_id for meta in metas}) == 2
    assert not any(meta.HasField("origin") for meta in metas)


async def test_an_event_id_a_time_and_an_origin_that_the_command_has_are_kept(
    log: SqliteLog, writer: CommandWriter
) -> None:
    meta = Meta(event_id=b"repeated", time_ms=7, origin=ORIGIN)
    await writer.append([push_command(PushCommand(meta=meta, send=SendPush(msgid=5)))])
    (record,) = await records(log, PUSH_COMMANDS.name)
    meta.writer = "edge"
    assert decode(record).meta == meta


@pytest.mark.parametrize(
    ("command", "topic", "key"),
    [
        (push_command(PushCommand(send=SendPush(msgid=12))), PUSH_COMMANDS, b"12"),
        (push_command(PushCommand(cancel=CancelPush(msgid=13))), PUSH_COMMANDS, b"13"),
        (task_command(TaskCommand(task_key="k1", cancel=CancelTask())), TASK_COMMANDS, b"k1"),
        (device_command(DeviceCommand(appkey="1", token="é")), DEVICE_COMMANDS, "1/é".encode()),
    ],
)
async def test_topics_and_keys_of_commands(
    command: Command, topic: object, key: bytes, log: SqliteLog, writer: CommandWriter
) -> None:
    assert (command.topic, command.key) == (topic, key)
    (position,) = await writer.append([command])
    assert position.partition == (0 if command.topic.single else partition_of(key, PARTITIONS))


async def test_a_command_can_name_its_partition(log: SqliteLog, writer: CommandWriter) -> None:
    commands = [
        Command(DEVICE_COMMANDS, b"1", DeviceCommand(appkey="1", revoke_all_keys=RevokeAllKeys()), number)
        for number in range(PARTITIONS)
    ]
    positions = await writer.append(commands)
    assert [position.partition for position in positions] == list(range(PARTITIONS))


async def test_a_writer_that_waits_returns_once_the_last_record_of_each_partition_is_applied(
    log: SqliteLog, writer: CommandWriter, peers: RecordingPeers
) -> None:
    waiting = asyncio.create_task(writer.append_and_wait([clear_alias(f"t{n}") for n in range(20)]))
    while not peers.awaited:
        await asyncio.sleep(0)
    ends = await log.ends([Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)])
    assert {Partition(p.topic, p.partition): p.offset + 1 for p in peers.awaited} == ends
    assert len(peers.awaited) == PARTITIONS
    assert not waiting.done()
    peers.applied.set()
    await waiting


@pytest.mark.parametrize("write", [CommandWriter.append, CommandWriter.append_and_wait])
async def test_a_command_that_is_too_large_is_refused_and_nothing_is_appended(
    log: SqliteLog, writer: CommandWriter, write: Callable[..., object]
) -> None:
    stags = AddStags(stags=["x" * MAX_RECORD_BYTES])
    large = device_command(DeviceCommand(appkey="1", token="t", add_stags=stags))
    with pytest.raises(InputError, match="the request is too large: it makes a record of"):
        await write(writer, [clear_alias("t"), large])  # type: ignore[misc]
    assert await records(log, DEVICE_COMMANDS.name) == []
