"""Guarantees of the log on Kafka alone, on a real broker that is killed, paused and misconfigured."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from services.domain.topics import APPS, DEVICES, PUSHES, SESSIONS, TOPICS
from services.errors import ConflictError, InputError, UnavailableError
from services.log.kafka.log import KafkaLog
from services.log.kafka.topics import least_in_sync, topic_configs, wanted
from services.log.port import Log, Partition, Reader, RecordMark, check_offsets
from testkit.kafka.broker import KafkaBroker
from testkit.kafka.tools import run_with_kafka_tools
from tests.contract.log.conftest import PARTITIONS, Connect
from tests.contract.log.reading import P0, P1, new_record, read_count, read_to_end, values

pytestmark = pytest.mark.kafka
Result = TypeVar("Result")


@pytest.fixture
async def admin(empty_broker: KafkaBroker) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=empty_broker.bootstrap)
    await client.start()
    yield client
    await client.close()


class Writers:
    """Tasks that each append one record after the other without a pause; records the returned offsets."""

    def __init__(self, log: Log, count: int) -> None:
        self.answered: list[tuple[int, str]] = []
        self._more = asyncio.Event()
        self._stopping = False
        self._tasks = [asyncio.create_task(self._write(log, number)) for number in range(count)]

    async def _write(self, log: Log, writer: int) -> None:
        turn = 0
        while not self._stopping:
            value = f"{writer}/{turn}"
            [offset] = await log.append([new_record(value)])
            self.answered.append((offset, value))
            self._more.set()
            turn += 1

    async def until(self, answers: int) -> None:
        async with asyncio.timeout(60):
            while len(self.answered) < answers:
                self._more.clear()
                await self._more.wait()

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


def first_appearances(found: list[str], writer: int) -> list[int]:
    """Return the turns of a writer in the order in which a reader sees them that drops repeated records."""
    turns = [value.split("/") for value in dict.fromkeys(found)]
    return [int(turn) for who, turn in turns if int(who) == writer]


async def persistent_read(reader: Reader, wanted: set[str]) -> list[str]:
    """Read until all wanted values were seen, retrying while the log is unavailable."""
    found: list[str] = []
    async with asyncio.timeout(60):
        while not wanted <= set(found):
            try:
                found += values(await reader.read())
            except UnavailableError:
                continue
    return found


@pytest.mark.long
async def test_a_killed_broker_loses_no_appended_record(connect: Connect, empty_broker: KafkaBroker) -> None:
    log = await connect()
    reader = await log.open({P0: 0})
    writers = Writers(log, 16)
    await writers.until(500)
    await asyncio.to_thread(empty_broker.kill)
    before = len(writers.answered)
    await asyncio.to_thread(empty_broker.start)
    await writers.until(before + 500)
    await writers.stop()

    stored = {record.offset: record.value.decode() for record in await read_to_end(log, {P0: 0})}
    assert {(offset, value) for offset, value in writers.answered} <= set(stored.items())
    wanted = {value for _, value in writers.answered}
    for found in (list(stored.values()), await persistent_read(reader, wanted)):
        assert wanted <= set(found)
        for writer in range(16):
            turns = first_appearances(found, writer)
            assert turns == list(range(len(turns)))


async def test_a_paused_broker_is_unavailable_until_it_resumes(connect: Connect, empty_broker: KafkaBroker) -> None:
    log = await connect(timeout_s=2)
    await log.append([new_record("before"), new_record("before", P1)])
    reader = await log.open({P0: 1})
    empty_broker.pause()
    try:
        calls = [log.append([new_record("lost")]), log.append([new_record("lost", P1)]), log.ends([P0]), reader.read()]
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        empty_broker.resume()
    assert [type(answer) for answer in answers] == [UnavailableError] * 4

    async with asyncio.timeout(60):
        offsets: list[int] = []
        for number in range(10):
            offsets += await until_available(partial(log.append, [new_record(f"after {number}")]))
        last = await until_available(lambda: log.last(P0))
    assert offsets == sorted(offsets)
    assert last is not None
    assert (last.offset, last.value) == (offsets[-1], b"after 9")
    found = await persistent_read(reader, {f"after {number}" for number in range(10)})
    assert [value for value in dict.fromkeys(found) if value != "lost"] == [f"after {n}" for n in range(10)]


@pytest.mark.long
async def test_readers_go_on_after_the_broker_refused_their_connections(
    connect: Connect, empty_broker: KafkaBroker
) -> None:
    """aiokafka's consumers let the cancellation of their own tasks out of their stop then."""
    log = await connect(timeout_s=6)
    readers = [await log.open({partition: 0}) for partition in (P0, P1)]
    await log.append([new_record("before"), new_record("before", P1)])
    for reader in readers:
        assert values(await read_count(reader, 1)) == ["before"]
    reading = [asyncio.create_task(persistent_read(reader, {"after"})) for reader in readers]
    await asyncio.to_thread(empty_broker.kill)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await log.ends([P0])
    await asyncio.to_thread(empty_broker.start)
    await until_available(lambda: log.append([new_record("after"), new_record("after", P1)]))
    for read in reading:
        assert "after" in await asyncio.wait_for(read, 60)


async def until_available(call: Callable[[], Awaitable[Result]]) -> Result:
    while True:
        try:
            return await call()
        except UnavailableError:
            continue


async def test_another_number_of_partitions_is_refused(connect: Connect) -> None:
    await (await connect(partitions=PARTITIONS)).close()
    with pytest.raises(ConflictError, match="device-commands has 4 partitions, but 8 are configured"):
        await connect(partitions=8)


async def test_topics_are_made_so_that_no_answered_record_is_lost(connect: Connect, admin: AIOKafkaAdminClient) -> None:
    log = await connect()
    assert log.identity == (await admin.describe_cluster())["cluster_id"]
    found = await topic_configs(admin, {PUSHES.name: wanted(PUSHES, 1), APPS.name: wanted(APPS, 1)})
    assert found == {PUSHES.name: wanted(PUSHES, 1), APPS.name: wanted(APPS, 1)}
    assert [least_in_sync(replication) for replication in (1, 2, 3, 5)] == [1, 2, 2, 3]


@pytest.mark.long
async def test_topics_that_could_lose_records_are_refused_with_the_command_that_mends_them(
    connect: Connect, admin: AIOKafkaAdminClient, tmp_path: Path
) -> None:
    lossy = {
        "retention.ms": "604800000",
        "retention.bytes": "1000000",
        "unclean.leader.election.enable": "true",
        "max.message.bytes": "1000",
    }
    await admin.create_topics([NewTopic(PUSHES.name, PARTITIONS, 1, topic_configs=lossy)])
    await admin.create_topics([NewTopic(APPS.name, 1, 1, topic_configs={"cleanup.policy": "delete"})])
    with pytest.raises(ConflictError) as refused:
        await connect()
    problems, _, command = str(refused.value).partition(" Fix it with: ")
    for key, value in lossy.items():
        assert f"pushes has {key}={value} instead of {wanted(PUSHES, 1)[key]}" in problems
    assert "apps has cleanup.policy=delete instead of compact" in problems
    await asyncio.to_thread(run_with_kafka_tools, command, tmp_path / "tools")
    assert await (await connect()).append([new_record("a")]) == [0]


async def test_more_replicas_than_brokers_are_refused(connect: Connect, empty_broker: KafkaBroker) -> None:
    await connect()
    with pytest.raises(ConflictError, match="REPLICATION is 3, but the Kafka cluster has 1 brokers: start more"):
        await KafkaLog.connect(empty_broker.bootstrap, TOPICS, PARTITIONS, replication=3)


async def test_too_many_copies_are_refused(empty_broker: KafkaBroker) -> None:
    with pytest.raises(ConflictError, match="cannot be created"):
        await KafkaLog.connect(empty_broker.bootstrap, TOPICS, PARTITIONS, replication=3)


async def test_an_address_without_a_broker_is_unavailable() -> None:
    with pytest.raises(
        UnavailableError, match=r"^Kafka cannot be reached at CARILLON_KAFKA_BOOTSTRAP=127\.0\.0\.1:1: "
    ):
        await KafkaLog.connect("127.0.0.1:1", TOPICS, timeout_s=1)


async def test_several_roles_may_start_at_once(connect: Connect) -> None:
    logs = await asyncio.gather(*(connect() for _ in range(3)))
    assert await logs[0].append([new_record("a")]) == [0]
    assert await logs[1].append([new_record("b")]) == [1]
    assert await logs[2].ends([P0]) == {P0: 2}


async def test_a_partition_beyond_the_installation_is_refused(connect: Connect) -> None:
    log = await connect()
    with pytest.raises(InputError):
        await log.append([new_record("a", Partition(SESSIONS.name, PARTITIONS))])


async def test_the_last_record_is_found_before_a_transaction_marker(
    connect: Connect, empty_broker: KafkaBroker
) -> None:
    log = await connect()
    await log.append([new_record("a")])
    async with AIOKafkaProducer(bootstrap_servers=empty_broker.bootstrap, transactional_id="t") as other:
        for value in (b"b", b"c"):
            async with other.transaction():
                await other.send_and_wait(P0.topic, value, key=b"k", partition=P0.number)
        async with other.transaction():
            await other.send_and_wait(P0.topic, b"d", key=b"k", partition=P1.number)
    async with asyncio.timeout(60):  # the broker writes the marks a moment after it has answered
        while await log.ends([P0, P1]) != {P0: 5, P1: 2}:
            continue
    last, other_last = await log.last(P0), await log.last(P1)
    assert last is not None
    assert other_last is not None
    assert (last.offset, last.value, other_last.offset, other_last.value) == (3, b"c", 0, b"d")
    assert values(await read_to_end(log, {P0: 0})) == ["a", "b", "c"]


async def test_kafka_compacts_only_records_that_a_later_one_replaces(
    connect: Connect, admin: AIOKafkaAdminClient
) -> None:
    settings = {
        "cleanup.policy": "compact",
        "max.message.bytes": "1200000",
        "segment.ms": "50",
        "min.cleanable.dirty.ratio": "0.01",
    }
    await admin.create_topics([NewTopic(APPS.name, 1, 1, topic_configs=settings)])
    log = await connect()
    apps = Partition(APPS.name, 0)
    offsets: list[int] = []
    async with asyncio.timeout(60):
        while len(records := await read_to_end(log, {apps: 0})) >= len(offsets):
            offsets += await log.append([new_record(f"{len(offsets)}", apps, key) for key in ("a", "b")])
    assert offsets == list(range(len(offsets)))
    assert {record.key: record.offset for record in records} == {b"a": offsets[-2], b"b": offsets[-1]}
    last = await log.last(apps)
    assert last is not None
    assert last.offset == offsets[-1]
    removed = min(set(offsets) - {record.offset for record in records})
    assert await read_to_end(log, {apps: removed})


async def test_kafka_removes_a_device_for_which_an_empty_value_came(
    connect: Connect, admin: AIOKafkaAdminClient
) -> None:
    settings = {
        "cleanup.policy": "compact",
        "max.message.bytes": "1200000",
        "segment.ms": "50",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    await admin.create_topics([NewTopic(DEVICES.name, PARTITIONS, 1, topic_configs=settings)])
    log = await connect()
    devices = Partition(DEVICES.name, 0)
    await log.append([new_record("before", devices, "token"), new_record("now", devices, "~name")])
    await log.append([new_record("", devices, "token")])
    async with asyncio.timeout(60):
        while any(record.key == b"token" for record in await read_to_end(log, {devices: 0})):
            await log.append([new_record("other", devices, "other")])


async def test_a_position_before_the_first_stored_record_is_a_conflict(
    connect: Connect, admin: AIOKafkaAdminClient
) -> None:
    log = await connect()
    await log.append([new_record(str(number)) for number in range(10)])
    opened_before = await log.open({P0: 0})
    await admin.delete_records({TopicPartition(*P0): RecordsToDelete(before_offset=5)})
    with pytest.raises(ConflictError, match="from offset 5 on, but the next record to read is 4: those between were"):
        await log.open({P0: 4})
    with pytest.raises(ConflictError, match="from offset 5 on, but the next record to read is 3"):
        await check_offsets(log, "delivery", {P0: 3})
    with pytest.raises(ConflictError, match=r"ends at offset 10 .* gone back.*restore --lost-devices"):
        await check_offsets(log, "delivery", {P0: 11})
    await check_offsets(log, "delivery", {P0: 5}, {P0: RecordMark(4, 1, 1)})  # the marked record was removed
    with pytest.raises(ConflictError, match="another record at offset 5"):
        await check_offsets(log, "delivery", {P0: 6}, {P0: RecordMark(5, 1, 1)})
    with pytest.raises(ConflictError):
        await asyncio.wait_for(opened_before.read(), 60)
    assert values(await read_count(await log.open({P0: 5}), 5)) == ["5", "6", "7", "8", "9"]
