"""Queues share one reader while they keep up, have one each while they do not, and take each record once."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, cast

import pytest

from protos.delivery.v1.delivery_pb2 import DeliveryFact, Outcomes
from protos.registry.v1.apps_pb2 import EventKind, Webhook
from protos.runtime.v1.log_pb2 import Meta
from services.domain.events import Event, EventTranslator
from services.domain.webhooks import team_scope
from services.log.point_in_time import offsets_at
from services.log.port import Partition, Reader, Record
from services.replica.epochs import ImpossibleEpochError, next_epoch
from services.webhooks import event_queue, log_readers
from services.webhooks.event_queue import EventQueue
from services.webhooks.log_readers import EpochsFromOffset, LogReaders
from services.webhooks.main import sources
from services.webhooks.push_labels import PushLabels
from services.webhooks.subscriptions import Subscriber, app_subscriber
from testkit.waiting import until_holds
from tests.services.webhooks.conftest import APP, OTHER, PARTITIONS, TEAM, Installation

NO_LABELS = PushLabels(cast(Any, None), cast(Any, None), cast(Any, None), snapshot=None)
OUTCOMES = Partition("deliveries", 0)


def new_queue(name: str, outcomes_from: int, until: int | None = None) -> EventQueue:
    starts = dict.fromkeys(sources(PARTITIONS), 0) | {OUTCOMES: outcomes_from}
    ends = dict.fromkeys(sources(PARTITIONS), 0) | {OUTCOMES: until} if until is not None else None
    return EventQueue(name, app_subscriber(APP), Webhook(webhook_id=name), starts, NO_LABELS, ends)


def new_readers(installation: Installation) -> LogReaders:
    return LogReaders(installation.log, sources(PARTITIONS), installation.apps.get)


def held(queue: EventQueue) -> list[str]:
    return [queued.event.id for queued in queue.next_events(10_000)]


async def test_queues_at_different_offsets_join_and_take_each_record_once(installation: Installation) -> None:
    expected = [event for _ in range(6) for event in await installation.report(2)]
    readers = new_readers(installation)
    ahead, behind = new_queue("ahead", 5), new_queue("behind", 1)
    readers.add(ahead)
    await until_holds(lambda: "ahead" in readers.live)
    readers.add(behind)
    await until_holds(lambda: "behind" in readers.live)
    expected += await installation.report(2)
    await until_holds(lambda: held(ahead)[-1:] == held(behind)[-1:] == expected[-1:])
    assert held(ahead) == expected[10:]
    assert held(behind) == expected[2:]
    await readers.close()


async def test_the_records_of_many_appends_are_one_read(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, gathering, calls = asyncio.Event(), asyncio.Event(), [0]

    async def gather() -> None:
        calls[0] += 1
        gathering.set()
        await opened.wait()

    monkeypatch.setattr(log_readers, "gather_records", gather)
    readers, queue = new_readers(installation), new_queue("one", 0)
    readers.add(queue)
    await until_holds(lambda: "one" in readers.live)
    expected = await installation.report(1)
    await asyncio.wait_for(gathering.wait(), 60)
    for _ in range(20):
        expected += await installation.report(1)
    assert held(queue) == expected[:1]
    opened.set()
    await until_holds(lambda: held(queue) == expected)
    assert calls[0] <= 2, "a read for the first event, and one for all others"
    await readers.close()


async def test_a_full_queue_leaves_waits_for_capacity_and_joins_again(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_queue, "MAX_QUEUED", 4)
    monkeypatch.setattr(log_readers, "NEAR_RECORDS", 2)
    readers = new_readers(installation)
    full, quick = new_queue("full", 0), new_queue("quick", 0)
    for each in (full, quick):
        readers.add(each)
        await until_holds(lambda each=each: each.id in readers.live)  # type: ignore[misc]
    taken: list[str] = []
    expected: list[str] = []
    for _ in range(10):
        expected += await installation.report(2)
        await until_holds(lambda: len(quick.next_events(9)) == 2)
        taken += held(quick)
        quick.remove(2)
    assert taken == expected
    assert (held(full), list(readers.live)) == (expected[:4], ["quick"])
    found: list[str] = []
    while len(found) < len(expected):
        await until_holds(lambda: bool(full.next_events(1)))
        found += held(full)
        full.remove(len(full.next_events(10_000)))
    await until_holds(lambda: "full" in readers.live)
    assert found == expected
    assert full.delivered[OUTCOMES] == 10
    await readers.close()


async def test_a_queue_that_is_full_for_long_keeps_no_reader_and_few_events_and_misses_nothing(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_queue, "MAX_QUEUED", 8)
    monkeypatch.setattr(event_queue, "MAX_EVENTS", 3)
    monkeypatch.setattr(log_readers, "IDLE_S", 0.01)
    opened: list[Reader] = []
    closed: list[Reader] = []

    async def open_counted(starts: Mapping[Partition, int]) -> Reader:
        reader = await open_reader(starts)
        opened.append(reader)
        close = reader.close

        async def close_counted() -> None:
            closed.append(reader)
            await close()

        monkeypatch.setattr(reader, "close", close_counted)
        return reader

    open_reader = installation.log.open
    monkeypatch.setattr(installation.log, "open", open_counted)
    expected = [event for _ in range(10) for event in await installation.report(2)]
    readers = new_readers(installation)
    full = new_queue("full", 0)
    readers.add(full)
    await until_holds(lambda: held(full) == expected[:4] and len(opened) == len(closed) > 0)
    assert (full.taken[OUTCOMES], full.has_capacity.is_set()) == (2, False)
    found: list[str] = []
    while len(found) < len(expected):
        await until_holds(lambda: bool(full.next_events(1)))
        found += held(full)
        full.remove(len(full.next_events(10_000)))
    assert found == expected
    await readers.close()
    assert len(opened) == len(closed)


@pytest.mark.parametrize("rows", [1, 30])
async def test_a_reader_lets_others_run(rows: int, installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it handles what it has read at once, and also within a record: `carillon up` sends pushes meanwhile."""
    monkeypatch.setattr(log_readers, "AT_ONCE", 10)
    made = 0

    class Counted(EventTranslator):
        def events(self, *arguments: Any) -> Iterator[Event]:
            nonlocal made
            for event in super().events(*arguments):
                made += 1
                yield event

    monkeypatch.setattr(log_readers, "EventTranslator", Counted)
    expected = [event for _ in range(60 // rows) for event in await installation.report(rows)]
    readers = new_readers(installation)
    for each in (new_queue("alone", 0, until=60 // rows), new_queue("shared", 0)):
        made, seen = 0, [0]
        readers.add(each)
        async with asyncio.timeout(60):
            while held(each) != expected:
                await asyncio.sleep(0)
                seen.append(made)
        assert max(later - before for before, later in pairwise(seen)) <= 10
    await readers.close()


async def test_a_queue_whose_records_the_log_has_removed_goes_on_where_it_begins(installation: Installation) -> None:
    expected = [event for _ in range(5) for event in await installation.report(1)]
    await installation.log.trim(OUTCOMES, 3)
    readers = new_readers(installation)
    late = new_queue("late", 1)
    readers.add(late)
    await until_holds(lambda: held(late) == expected[3:])
    await readers.close()


async def test_a_queue_with_an_end_takes_what_is_before_it(installation: Installation) -> None:
    expected = [event for _ in range(5) for event in await installation.report(1)]
    readers = new_readers(installation)
    hour = new_queue("hour", 1, until=3)
    readers.add(hour)
    await until_holds(lambda: hour.has_taken_all)
    assert held(hour) == expected[1:3]
    hour.remove(2)
    assert hour.is_over
    assert not readers.live
    await readers.close()


async def test_the_offsets_of_a_moment_are_found(installation: Installation) -> None:
    begun_ms = installation.clock.now_ms()
    for count in range(40):
        await installation.report(1, partition=count % 3 // 2)
        installation.clock.move(1)
    for seconds in (-5, 0, 1, 13, 39, 40, 99):
        found = await offsets_at(installation.log, sources(PARTITIONS), begun_ms + seconds * 1000)
        before = [count for count in range(40) if count < seconds]
        assert found[OUTCOMES] == sum(count % 3 < 2 for count in before)
        assert found[Partition("deliveries", 1)] == sum(count % 3 == 2 for count in before)
        assert found[Partition("apps", 0)] == 0


def fact(epoch: int, *, is_announcement: bool = False) -> DeliveryFact:
    return DeliveryFact(meta=Meta(epoch=epoch), outcomes=None if is_announcement else Outcomes())


def test_a_reader_that_begins_behind_an_announcement_takes_the_owners_facts() -> None:
    """The first record that it reads may be a former owner's."""
    epochs, owners = EpochsFromOffset(), [0]
    for _ in range(4):
        owners.append(next_epoch(owners[-1]))
    _, former, owner, successor, forged = owners

    def admits(offset: int, message: DeliveryFact) -> bool:
        return epochs.admits(Record(*OUTCOMES, offset, b"", message.SerializeToString()), message)

    assert admits(5, fact(former))
    assert admits(6, fact(owner))
    assert not admits(7, fact(former))
    assert admits(8, fact(successor, is_announcement=True))
    assert admits(9, fact(successor))
    with pytest.raises(ImpossibleEpochError):
        admits(10, fact(forged))
    assert admits(11, fact(successor))


def test_what_queues_want_is_built_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[event_queue.Wanted] = []

    def build(queues: Iterable[EventQueue]) -> event_queue.Wanted:
        built.append(wanted_of(queues))
        return built[-1]

    wanted_of = event_queue.wanted_of
    monkeypatch.setattr(event_queue, "wanted_of", build)
    apps = {"apps": frozenset({APP})}
    of_team = Subscriber(team_scope(TEAM), lambda: apps["apps"], lambda: "News")
    made = EventQueue("1", of_team, Webhook(kinds=[EventKind.EVENT_KIND_APP_PAUSED]), {}, NO_LABELS)
    wanted = event_queue.WantedKinds()
    paused = frozenset({EventKind.EVENT_KIND_APP_PAUSED})
    assert [wanted.of([made]) for _ in range(3)] == [{team_scope(TEAM): paused, APP: paused}] * 3
    assert len(built) == 1
    apps["apps"] |= {OTHER}
    assert wanted.of([made])[OTHER] == paused
    made.use(Webhook(kinds=[EventKind.EVENT_KIND_APP_RESUMED]))
    assert wanted.of([made])[APP] == frozenset({EventKind.EVENT_KIND_APP_RESUMED})
    assert wanted.of([]) == {}
    assert len(built) == 4
