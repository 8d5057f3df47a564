"""The Kafka log's producer: replaced when it fails, its batches found when the broker names no offset."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from services.errors import UnavailableError
from services.log.kafka.lookups import find_batch
from tests.contract.log.conftest import Connect
from tests.contract.log.reading import P0, P1, new_record, read_to_end, values

pytestmark = pytest.mark.kafka


async def test_a_poisoned_producer_is_replaced_and_the_records_sent_again(connect: Connect) -> None:
    log = await connect()
    await log.append([new_record("a"), new_record("a", P1)])
    poisoned = await log._producer.current()
    poisoned._txn_manager.increment_sequence_number(TopicPartition(*P0), 3)
    answers = await asyncio.gather(
        *(log.append([new_record(f"{n}", (P0, P1)[n % 2]), new_record(f"{n}+", (P0, P1)[n % 2])]) for n in range(100))
    )
    assert answers == [[1 + n // 2 * 2, 2 + n // 2 * 2] for n in range(100)]
    assert await log._producer.current() is not poisoned
    assert await log.append([new_record("b"), new_record("b", P1)]) == [101, 101]
    expected = ["a", *(v for n in range(0, 100, 2) for v in (f"{n}", f"{n}+")), "b"]
    assert values(await read_to_end(log, {P0: 0})) == expected


async def test_a_producer_whose_sender_died_is_replaced(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise RuntimeError("the sender dies")

    log = await connect()
    await log.append([new_record("a")])
    producer = await log._producer.current()
    monkeypatch.setattr(producer._message_accumulator, "drain_by_nodes", die)
    assert await log.append([new_record("b")]) == [1]
    assert values(await read_to_end(log, {P0: 0})) == ["a", "b"]


@pytest.mark.long
async def test_a_producer_that_hangs_is_replaced(connect: Connect) -> None:
    log = await connect(timeout_s=4)
    await log.append([new_record("a")])
    (await log._producer.current())._sender.sender_task.cancel()
    with pytest.raises(UnavailableError):
        await log.append([new_record("b")])
    assert await log.append([new_record("c")]) == [1]
    assert values(await read_to_end(log, {P0: 0})) == ["a", "c"]


def lose_offsets(producer: AIOKafkaProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the producer answer as when the broker has a retried batch already: written, at offset -1."""
    send_batch = producer.send_batch

    async def send(*arguments: Any, **options: Any) -> "asyncio.Future[Any]":
        metadata = await (await send_batch(*arguments, **options))
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(metadata._replace(offset=-1))
        return answer

    monkeypatch.setattr(producer, "send_batch", send)


async def test_the_offsets_of_a_batch_that_was_written_already_are_looked_up(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = await connect(), await connect()
    await log.append([new_record("same"), new_record("same"), new_record("same", P1)])
    lose_offsets(await log._producer.current(), monkeypatch)
    assert await log.append([new_record("a")]) == [2]
    assert await log.append([new_record("same"), new_record("same")]) == [3, 4]
    await other.append([new_record(f"other {number}") for number in range(1000)])
    assert await log.append([new_record("b"), new_record("b", P1), new_record("c")]) == [1005, 1, 1006]


async def test_a_batch_that_was_written_already_is_found_behind_records_of_other_writers(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = await connect(), await connect()
    batch = [new_record("a"), new_record("b")]
    await log.append(batch)
    await other.append([new_record(f"other {number}") for number in range(300)])
    ends = await log.ends([P0])
    assert await find_batch(log._settings, P0, batch, 0, ends[P0]) == 0
    with pytest.raises(UnavailableError, match="cannot be found"):
        await find_batch(log._settings, P0, [new_record("b"), new_record("a")], 0, ends[P0])
