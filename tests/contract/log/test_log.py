"""The contract of every event log: the same tests on SQLite and on a real Kafka broker."""

import asyncio
import itertools

import pytest

from services.domain.topics import APPS, DEVICES
from services.errors import BusyError, ConflictError, InputError, UnavailableError
from services.log.port import (
    MAX_RECORD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Log,
    NewRecord,
    Partition,
    check_offsets,
    last_marks,
    mark_of,
)
from tests.contract.log.conftest import OpenLog
from tests.contract.log.reading import P0, P1, P2, new_record, read_count, read_to_end, values


async def test_appended_records_are_there_after_reopening(open_log: OpenLog) -> None:
    log = await open_log()
    identity = log.identity
    await log.append([new_record("a"), new_record("b", P1), new_record("c")])
    await log.close()
    log = await open_log()
    assert log.identity == identity != ""
    assert values(await read_to_end(log, {P0: 0})) == ["a", "c"]
    assert values(await read_to_end(log, {P1: 0})) == ["b"]
    assert await log.append([new_record("d")]) == [2]


async def test_callers_of_one_partition_keep_their_order(log: Log) -> None:
    answers = await asyncio.gather(*(log.append([new_record(str(number))]) for number in range(2000)))
    assert answers == [[number] for number in range(2000)]
    assert values(await read_to_end(log, {P0: 0})) == [str(number) for number in range(2000)]


async def test_many_callers_of_many_partitions_get_the_offsets_of_their_records(log: Log) -> None:
    answered: dict[tuple[Partition, int], str] = {}

    async def call(caller: int) -> None:
        for turn in range(10):
            new_records = [new_record(f"{caller}/{turn}/{n}", p) for n, p in enumerate((P0, P1, P0, P2))]
            for sent, offset in zip(new_records, await log.append(new_records), strict=True):
                place = Partition(sent.topic, sent.partition), offset
                assert place not in answered
                answered[place] = sent.value.decode()

    await asyncio.gather(*(call(caller) for caller in range(100)))
    records = await read_to_end(log, {P0: 0, P1: 0, P2: 0})
    assert {(Partition(r.topic, r.partition), r.offset): r.value.decode() for r in records} == answered
    for partition, count in ((P0, 2000), (P1, 1000), (P2, 1000)):
        mine = [r for r in records if Partition(r.topic, r.partition) == partition]
        assert [record.offset for record in mine] == list(range(count))
        for _, turns in itertools.groupby(
            sorted((v.split("/") for v in values(mine)), key=lambda v: v[0]), key=lambda v: v[0]
        ):
            steps = [(int(turn), int(n)) for _, turn, n in turns]
            assert steps == sorted(steps)


async def test_one_append_may_be_larger_than_a_batch(log: Log) -> None:
    new_records = [new_record(f"{number:01000}") for number in range(3000)]
    assert await log.append(new_records) == list(range(3000))
    assert values(await read_to_end(log, {P0: 0})) == [d.value.decode() for d in new_records]


@pytest.mark.parametrize("start", [0, 1, 50, 99])
async def test_a_reader_started_anywhere_sees_the_rest_once(log: Log, start: int) -> None:
    await log.append([new_record(str(number)) for number in range(100)])
    reader = await log.open({P0: start})
    first = await read_count(reader, 100 - start, max_records=7)
    assert [record.offset for record in first] == list(range(start, 100))
    assert values(first) == [str(number) for number in range(start, 100)]
    await log.append([new_record("next")])
    assert values(await read_count(reader, 1)) == ["next"]


async def test_a_reader_at_the_end_wakes_for_new_records(log: Log) -> None:
    await log.append([new_record("before")])
    reader = await log.open({P0: 1, P1: 0})
    for number in range(5):
        reading = asyncio.create_task(reader.read())
        await log.append([new_record(f"now {number}", (P0, P1)[number % 2])])
        assert values(await asyncio.wait_for(reading, 60)) == [f"now {number}"]


async def test_a_record_that_is_appended_while_a_reader_opens_is_read(log: Log) -> None:
    for number in range(30):
        opening = asyncio.create_task(log.open({P0: number}))
        appending = asyncio.create_task(log.append([new_record(str(number))]))
        for _ in range(number):
            await asyncio.sleep(0)
        reader = await opening
        assert values(await read_count(reader, 1)) == [str(number)]
        await reader.close()
        await appending


async def test_a_reader_of_several_partitions_keeps_the_order_in_each(log: Log) -> None:
    writing = asyncio.gather(
        *(log.append([new_record(f"{n}", P0), new_record(f"{n}", P1), new_record(f"{n}", P2)]) for n in range(300))
    )
    reader = await log.open({P0: 0, P1: 0, P2: 0})
    records = await read_count(reader, 900, max_records=50)
    await writing
    for partition in (P0, P1, P2):
        mine = [r for r in records if r.partition == partition.number]
        assert [(r.offset, r.value.decode()) for r in mine] == [(n, str(n)) for n in range(300)]


async def test_two_readers_are_independent(log: Log) -> None:
    await log.append([new_record(str(number)) for number in range(10)])
    one, two = await log.open({P0: 0}), await log.open({P0: 5})
    assert len(await read_count(one, 10)) == 10
    await one.close()
    assert values(await read_count(two, 5)) == ["5", "6", "7", "8", "9"]


async def test_a_cancelled_read_skips_nothing(log: Log) -> None:
    reader = await log.open({P0: 0})
    for number in range(20):
        reading = asyncio.create_task(reader.read())
        writing = asyncio.create_task(log.append([new_record(str(number))]))
        await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert values(await read_count(reader, 1)) == [str(number)]
        else:
            assert values(reading.result()) == [str(number)]
        await writing


@pytest.mark.parametrize("reads_before", [0, 1])
@pytest.mark.parametrize("closes_log", [False, True])
async def test_a_read_that_waits_ends_when_it_is_closed(log: Log, reads_before: int, closes_log: bool) -> None:
    await log.append([new_record("a")] * reads_before)
    reader = await log.open({P0: 0})
    await read_count(reader, reads_before)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    await (log if closes_log else reader).close()
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(reading, 60)


async def test_ends_and_last_of_partitions(log: Log) -> None:
    assert await log.ends([P0, P1]) == {P0: 0, P1: 0}
    assert await log.last(P0) is None
    await log.append([new_record("a"), new_record("b"), new_record("c", P1)])
    assert await log.ends([P0, P1, P2]) == {P0: 2, P1: 1, P2: 0}
    last = await log.last(P0)
    assert last is not None
    assert (last.offset, last.key, last.value) == (1, b"k", b"b")
    assert await log.last(P2) is None


async def test_a_start_behind_the_end_belongs_to_another_log(log: Log) -> None:
    await log.append([new_record("a")])
    with pytest.raises(ConflictError):
        await log.open({P0: 2})
    with pytest.raises(ConflictError):
        await log.open({P0: 0, P1: 1})


async def test_compaction_keeps_the_last_record_of_each_key_of_a_partition(log: Log) -> None:
    d0, d1 = Partition(DEVICES.name, 0), Partition(DEVICES.name, 1)
    await log.append([new_record("a1", d0, "a"), new_record("b1", d0, "b"), new_record("a1", d1, "a")])
    await log.append([new_record("a2", d0, "a"), new_record("a3", d0, "a"), new_record("b2", d1, "b")])
    records = await read_to_end(log, {d0: 0, d1: 0})
    assert {(r.partition, r.key): (r.offset, r.value) for r in records} == {
        (0, b"b"): (1, b"b1"),
        (0, b"a"): (3, b"a3"),
        (1, b"a"): (0, b"a1"),
        (1, b"b"): (1, b"b2"),
    }
    assert await log.ends([d0, d1]) == {d0: 4, d1: 2}
    assert values(await read_to_end(log, {d0: 2})) in (["a2", "a3"], ["a3"])


async def test_an_empty_value_removes_a_device_with_its_key(log: Log) -> None:
    d0 = Partition(DEVICES.name, 0)
    await log.append([new_record("of before", d0, "token"), new_record("other", d0, "other")])
    await log.append([new_record("now", d0, "~name"), new_record("", d0, "token")])
    found = {record.key: record.value for record in await read_to_end(log, {d0: 0})}
    assert {key: value for key, value in found.items() if value} == {b"other": b"other", b"~name": b"now"}
    last = await log.last(d0)
    assert last is not None
    assert (last.offset, last.value) == (3, b"")
    await log.append([new_record("again", d0, "token"), new_record("", d0, "token"), new_record("", d0, "other")])
    found = {record.key: record.value for record in await read_to_end(log, {d0: 0})}
    assert {key: value for key, value in found.items() if value} == {b"~name": b"now"}
    assert await log.ends([d0]) == {d0: 7}


async def test_a_compacted_topic_whose_last_key_came_back_in_another_partition(log: Log) -> None:
    d0, d1 = Partition(DEVICES.name, 0), Partition(DEVICES.name, 1)
    await log.append([new_record("there", d0)])
    await log.append([new_record("here", d1)])
    last = await log.last(d0)
    assert last is not None
    assert last.value == b"there"


async def test_other_topics_keep_every_record(log: Log) -> None:
    for number in range(5):
        await log.append([new_record(str(number))])
    assert len(await read_to_end(log, {P0: 0})) == 5


async def test_a_cancelled_caller_loses_no_record(open_log: OpenLog) -> None:
    log = await open_log()
    callers = [asyncio.create_task(log.append([new_record(str(number))])) for number in range(100)]
    await asyncio.sleep(0)
    for caller in callers[::2]:
        caller.cancel()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert answers[1::2] == [[number] for number in range(1, 100, 2)]
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])
    await log.close()
    assert values(await read_to_end(await open_log(), {P0: 0})) == [str(number) for number in range(100)]


async def test_the_largest_record_is_accepted(log: Log) -> None:
    largest = NewRecord(P0.topic, 0, b"k", b"x" * (MAX_RECORD_BYTES - 1))
    assert await log.append([new_record("a"), largest, largest, new_record("b")]) == [0, 1, 2, 3]
    records = await read_to_end(log, {P0: 0})
    assert [len(record.value) for record in records] == [1, MAX_RECORD_BYTES - 1, MAX_RECORD_BYTES - 1, 1]


async def test_a_record_that_is_too_large_is_refused_and_affects_no_other(log: Log) -> None:
    large = NewRecord(P0.topic, 0, b"k", b"x" * MAX_RECORD_BYTES)
    answers = await asyncio.gather(
        log.append([new_record("a")]),
        log.append([new_record("b"), large]),
        log.append([new_record("c")]),
        return_exceptions=True,
    )
    assert answers[0] == [0]
    assert isinstance(answers[1], InputError)
    assert answers[2] == [1]
    assert await log.append([new_record("d")]) == [2]


@pytest.mark.parametrize("partition", [Partition("gossip", 0), Partition(P0.topic, -1), Partition(APPS.name, 1)])
async def test_a_partition_that_does_not_exist_is_refused(log: Log, partition: Partition) -> None:
    with pytest.raises(InputError):
        await log.append([new_record("a"), new_record("b", partition)])
    assert await log.append([new_record("c")]) == [0]


async def test_an_append_of_no_records(log: Log) -> None:
    assert await log.append([]) == []


async def test_appends_beyond_the_waiting_bytes_are_refused_and_the_rest_is_appended(open_log: OpenLog) -> None:
    value = "x" * (1000 - 1)
    log = await open_log(max_waiting_bytes=6 * (1000 + RECORD_OVERHEAD_BYTES))
    answers = await asyncio.gather(*(log.append([new_record(value)]) for _ in range(20)), return_exceptions=True)
    assert answers[:6] == [[number] for number in range(6)]
    assert all(isinstance(answer, BusyError) for answer in answers[6:])
    assert await log.append([new_record(value) for _ in range(50)]) == list(range(6, 56))


async def test_close_appends_waiting_records(open_log: OpenLog) -> None:
    log = await open_log()
    callers = [asyncio.create_task(log.append([new_record(str(n), (P0, P1)[n % 2])])) for n in range(500)]
    await asyncio.sleep(0)
    await log.close()
    assert await asyncio.gather(*callers) == [[number // 2] for number in range(500)]
    await log.close()
    with pytest.raises(UnavailableError):
        await log.append([new_record("late")])
    assert await (await open_log()).ends([P0, P1]) == {P0: 250, P1: 250}


async def test_the_check_for_writing_appends_nothing(log: Log) -> None:
    await log.append([new_record("a")])
    await log.check_writable()
    assert (await log.ends([P0]))[P0] == 1
    assert await log.append([new_record("b")]) == [1]
    await log.close()
    with pytest.raises(UnavailableError):
        await log.check_writable()


async def test_records_that_a_state_has_marked_are_read_again(log: Log) -> None:
    """However far behind the end they are, and also where a signature has been added behind them."""
    await log.append([new_record(str(number), p) for number in range(300) for p in (P0, P1, P2)])
    read = await read_to_end(log, {P0: 0, P1: 0, P2: 0})
    for number in (0, 150, 299):
        applied = [record for record in read if record.offset <= number]
        marks = last_marks(applied)
        assert {partition: mark.offset for partition, mark in marks.items()} == {P0: number, P1: number, P2: number}
        offsets = dict.fromkeys(marks, number + 1)
        await check_offsets(log, "delivery", offsets, marks)
        with pytest.raises(
            ConflictError, match=rf"another record at offset {number} of \S+/1 .*restore --lost-devices"
        ):
            await check_offsets(log, "delivery", offsets, {**marks, P1: marks[P1]._replace(crc=1)})
    key = read[0].key
    await log.append([NewRecord(*P0, key, b"content and signature")])
    await check_offsets(log, "delivery", {P0: 301}, {P0: mark_of(300, NewRecord(*P0, key, b"content"))})
    with pytest.raises(ConflictError, match="another record at offset 300"):
        await check_offsets(log, "delivery", {P0: 301}, {P0: mark_of(300, NewRecord(*P0, key, b"contents"))})
    await check_offsets(log, "delivery", {P0: 301}, {P1: marks[P1]._replace(crc=1)})  # is not of the state
