"""Replays of delivery: the live state from any history, in memory that does not grow with the history."""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import PushCancelled, PushFact, PushFinished, PushStarted
from protos.push.v1.push_pb2 import Audience, CancelPush, Everyone, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.runtime.v1.log_pb2 import Meta, Position
from services.delivery.main import open_state
from services.delivery.settings import DeliverySettings
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.serialization import digest
from services.delivery.store import DeliveryStore
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES, TOPICS, decode
from services.log.port import Log, NewRecord, Partition, Record
from services.log.sqlite.log import SqliteLog
from testkit.delivery.records import APP, PARTITIONS, RECEIVED, START_MS, NumberedDevice, listed_audience
from tests.services.delivery.state.records import outcomes_fact

GAP_MS = 20


class LiveHistory:
    """Records as delivery and the edge write them, and the state folded from them in the order of writing.

    Outcomes of former versions name no causes.
    """

    def __init__(self, log: Log, *, names_causes: bool = True) -> None:
        self._names_causes = names_causes
        self.live = DeliveryState(range(PARTITIONS))
        self._log = log
        self._new_records: list[NewRecord] = []
        self._ends: dict[Partition, int] = {}

    def add(self, topic: str, partition: int, message: PushCommand | PushFact) -> int:
        log_partition = Partition(topic, partition)
        offset = self._ends.get(log_partition, 0)
        self._ends[log_partition] = offset + 1
        new_record = NewRecord(topic, partition, b"", message.SerializeToString())
        record = Record(topic, partition, offset, b"", new_record.value)
        self.live.apply(record, decode(record))
        self._new_records.append(new_record)
        return offset

    def request(self, msgid: int, time_ms: int, audience: Audience) -> int:
        send = SendPush(
            msgid=msgid,
            id_count=1,
            appkey=APP,
            platform=PLATFORM_ANDROID,
            audience=audience,
            message=Message(content="x" * 200),
            period_s=3600,
        )
        return self.add(PUSH_COMMANDS.name, 0, PushCommand(meta=Meta(time_ms=time_ms), send=send))

    def write_fact(self, msgid: int, partition: int, time_ms: int, cause_offset: int | None, **kind: object) -> None:
        cause = None if cause_offset is None else Position(topic=PUSH_COMMANDS.name, offset=cause_offset)
        meta = Meta(time_ms=time_ms, cause=cause)
        fact = PushFact(meta=meta, msgid=msgid, appkey=APP, partition=partition, **kind)  # type: ignore[arg-type]
        self.add(PUSHES.name, partition, fact)

    def acknowledge(self, msgid: int, at: NumberedDevice, time_ms: int) -> None:
        fact = outcomes_fact(APP, [(msgid, at.number, RECEIVED)])
        fact.meta.time_ms = time_ms
        if self._names_causes:
            known = self._ends[Partition(PUSHES.name, at.partition)] - 1
            fact.meta.cause.CopyFrom(Position(topic=PUSHES.name, partition=at.partition, offset=known))
        self.add(DELIVERIES.name, at.partition, fact)  # type: ignore[arg-type]

    async def append_all(self) -> None:
        for at in range(0, len(self._new_records), 5000):
            await self._log.append(self._new_records[at : at + 5000])


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    yield log
    await log.close()


async def rebuild(
    log: Log, directory: Path, watch: Callable[[DeliveryStore], None] = lambda store: None
) -> DeliveryStore:
    settings = DeliverySettings(data_dir=str(directory), partitions=PARTITIONS)
    store = open_state(settings, directory / "delivery", log)
    ends: Mapping[Partition, int] = await log.ends(store.partitions)
    for follower in store.followers:
        await follower.apply_until(ends, lambda count: watch(store))
    return store


@pytest.mark.long
async def test_the_memory_of_a_replay_does_not_grow_with_pushes_that_are_over(log: SqliteLog, tmp_path: Path) -> None:
    """20,000 pushes, each received after a second: only those of a few seconds are in memory at once."""
    history = LiveHistory(log)
    count, life_ms = 20_000, 1000
    for number in range(count + life_ms // GAP_MS):
        now_ms, at = START_MS + number * GAP_MS, NumberedDevice(number % PARTITIONS, 0)
        if number < count:
            order = history.request(1000 + number, now_ms, listed_audience(at))
            started = PushStarted(audience=BitMap([0]).serialize(), count=1, expires_ms=now_ms + 3_600_000)
            history.write_fact(1000 + number, at.partition, now_ms + 5, order, started=started)
        if number >= life_ms // GAP_MS:
            before = number - life_ms // GAP_MS
            history.acknowledge(1000 + before, NumberedDevice(before % PARTITIONS, 0), now_ms + 6)
    await history.append_all()
    peak = 0

    def watch(store: DeliveryStore) -> None:
        nonlocal peak
        peak = max(peak, len(store.state.requested) + len(store.state.started))

    store = await rebuild(log, tmp_path, watch)
    assert (store.state.requested, dict(store.state.started)) == ({}, {})
    assert store.digest() == digest(history.live)
    assert 0 < peak < count // 10


@pytest.mark.parametrize("seed", range(20))
async def test_a_replay_of_any_history_gives_the_live_state(log: SqliteLog, tmp_path: Path, seed: int) -> None:
    """Pushes received, cancelled and finished in random order, requested by edges whose clocks are seconds off.

    In half of the histories delivery's own clock is set by up to five minutes; the others are those of former versions.
    """
    rng = random.Random(seed)
    is_clock_set = seed % 2 == 0
    history = LiveHistory(log, names_causes=is_clock_set)
    now_ms = START_MS
    open_: set[tuple[int, int]] = set()
    for msgid in range(1000, 1200):
        now_ms += rng.randrange(3000) + (rng.randrange(-300_000, 300_000) if is_clock_set else 0)
        skewed_ms = now_ms + rng.randrange(-20_000, 20_000)
        devices = [NumberedDevice(partition, number) for partition in range(PARTITIONS) for number in range(3)]
        everyone = rng.random() < 0.5
        audience = Audience(everyone=Everyone()) if everyone else listed_audience(*devices)
        order = history.request(msgid, skewed_ms, audience)
        bitmap = BitMap(range(3)).serialize()
        for partition in range(PARTITIONS):
            started = PushStarted(audience=bitmap, count=3, expires_ms=now_ms + 3_600_000)
            history.write_fact(msgid, partition, now_ms, order, started=started)
            open_.add((msgid, partition))
        for _ in range(rng.randrange(6)):
            now_ms += rng.randrange(2)
            if open_:
                _add_random_record(rng, history, now_ms, open_)
    await history.append_all()
    store = await rebuild(log, tmp_path)
    assert store.digest() == digest(history.live)
    assert store.state.started


def _add_random_record(rng: random.Random, history: LiveHistory, now_ms: int, open_: set[tuple[int, int]]) -> None:
    msgid, partition = rng.choice(sorted(open_))
    match rng.choice(["received", "received", "received", "cancel", "finished"]):
        case "received":
            history.acknowledge(msgid, NumberedDevice(partition, rng.randrange(3)), now_ms)
        case "cancel":
            cancel = CancelPush(msgid=msgid, appkey=APP)
            order = history.add(PUSH_COMMANDS.name, 0, PushCommand(meta=Meta(time_ms=now_ms), cancel=cancel))
            for each in range(PARTITIONS):
                if (msgid, each) in open_:
                    history.write_fact(msgid, each, now_ms, order, cancelled=PushCancelled())
                    open_.discard((msgid, each))
        case _:
            history.write_fact(msgid, partition, now_ms, None, finished=PushFinished())
            open_.discard((msgid, partition))
