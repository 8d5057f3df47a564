"""Delivery built again from the log: the same state whatever the order was, in memory that history does not fill."""

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
from services.runtime.log.port import Log, NewRecord, Partition, Record
from services.runtime.log.sqlite import SqliteLog
from testkit.delivery_records import APP, PARTITIONS, RECEIVED, START_MS, NumberedDevice, listed_audience
from tests.roles.delivery.state.test_state_model import outcomes

GAP_MS = 20


class History:
    """A log as delivery writes it, and the state as it was folded meanwhile."""

    def __init__(self, log: Log) -> None:
        self.live = DeliveryState(range(PARTITIONS))
        self._log = log
        self._drafts: list[NewRecord] = []
        self._ends: dict[Partition, int] = {}

    def add(self, topic: str, partition: int, message: PushCommand | PushFact) -> int:
        place = Partition(topic, partition)
        offset = self._ends.get(place, 0)
        self._ends[place] = offset + 1
        new_record = NewRecord(topic, partition, b"", message.SerializeToString())
        record = Record(topic, partition, offset, b"", new_record.value)
        self.live.apply(record, decode(record))
        self._drafts.append(new_record)
        return offset

    def ask(self, msgid: int, time_ms: int, audience: Audience) -> int:
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

    def say(self, msgid: int, partition: int, time_ms: int, because_of: int | None, **kind: object) -> None:
        cause = None if because_of is None else Position(topic=PUSH_COMMANDS.name, offset=because_of)
        meta = Meta(time_ms=time_ms, cause=cause)
        fact = PushFact(meta=meta, msgid=msgid, appkey=APP, partition=partition, **kind)  # type: ignore[arg-type]
        self.add(PUSHES.name, partition, fact)

    def receive(self, msgid: int, at: NumberedDevice, time_ms: int) -> None:
        fact = outcomes(APP, [(msgid, at.number, RECEIVED)])
        fact.meta.time_ms = time_ms
        self.add(DELIVERIES.name, at.partition, fact)  # type: ignore[arg-type]

    async def write(self) -> None:
        for at in range(0, len(self._drafts), 5000):
            await self._log.append(self._drafts[at : at + 5000])


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    yield log
    await log.close()


async def rebuilt(
    log: Log, directory: Path, watch: Callable[[DeliveryStore], None] = lambda fold: None
) -> DeliveryStore:
    settings = DeliverySettings(data_dir=str(directory), partitions=PARTITIONS)
    fold = open_state(settings, directory / "delivery", log)
    ends: Mapping[Partition, int] = await log.ends(fold.partitions)
    for follower in fold.followers:
        await follower.apply_until(ends, lambda count: watch(fold))
    return fold


async def test_the_memory_of_a_replay_does_not_grow_with_pushes_that_are_over(log: SqliteLog, tmp_path: Path) -> None:
    """20,000 pushes, each received after a second: what is in memory is a matter of seconds, not of the whole log."""
    history = History(log)
    count, life_ms = 20_000, 1000
    for number in range(count + life_ms // GAP_MS):
        now_ms, at = START_MS + number * GAP_MS, NumberedDevice(number % PARTITIONS, 0)
        if number < count:
            order = history.ask(1000 + number, now_ms, listed_audience(at))
            started = PushStarted(audience=BitMap([0]).serialize(), count=1, expires_ms=now_ms + 3_600_000)
            history.say(1000 + number, at.partition, now_ms + 5, order, started=started)
        if number >= life_ms // GAP_MS:
            before = number - life_ms // GAP_MS
            history.receive(1000 + before, NumberedDevice(before % PARTITIONS, 0), now_ms + 6)
    await history.write()
    peak = 0

    def watch(fold: DeliveryStore) -> None:
        nonlocal peak
        peak = max(peak, len(fold.state.requested) + len(fold.state.started))

    fold = await rebuilt(log, tmp_path, watch)
    assert (fold.state.requested, fold.state.started) == ({}, {})
    assert fold.digest() == digest(history.live)
    assert 0 < peak < count // 10


@pytest.mark.parametrize("seed", range(20))
async def test_a_replay_of_any_history_gives_the_live_state(log: SqliteLog, tmp_path: Path, seed: int) -> None:
    """Pushes that are received, cancelled and over in any order, from doors whose clocks are seconds off."""
    chance = random.Random(seed)
    history = History(log)
    now_ms = START_MS
    open_: set[tuple[int, int]] = set()
    for msgid in range(1000, 1200):
        now_ms += chance.randrange(3000)
        skewed_ms = now_ms + chance.randrange(-20_000, 20_000)
        devices = [NumberedDevice(partition, number) for partition in range(PARTITIONS) for number in range(3)]
        everyone = chance.random() < 0.5
        audience = Audience(everyone=Everyone()) if everyone else listed_audience(*devices)
        order = history.ask(msgid, skewed_ms, audience)
        bitmap = BitMap(range(3)).serialize()
        for partition in range(PARTITIONS):
            started = PushStarted(audience=bitmap, count=3, expires_ms=now_ms + 3_600_000)
            history.say(msgid, partition, now_ms, order, started=started)
            open_.add((msgid, partition))
        for _ in range(chance.randrange(6)):
            now_ms += chance.randrange(2)
            if open_:
                _happen(chance, history, now_ms, open_)
    await history.write()
    fold = await rebuilt(log, tmp_path)
    assert fold.digest() == digest(history.live)
    assert fold.state.started


def _happen(chance: random.Random, history: History, now_ms: int, open_: set[tuple[int, int]]) -> None:
    msgid, partition = chance.choice(sorted(open_))
    match chance.choice(["received", "received", "received", "cancel", "finished"]):
        case "received":
            history.receive(msgid, NumberedDevice(partition, chance.randrange(3)), now_ms)
        case "cancel":
            cancel = CancelPush(msgid=msgid, appkey=APP)
            order = history.add(PUSH_COMMANDS.name, 0, PushCommand(meta=Meta(time_ms=now_ms), cancel=cancel))
            for each in range(PARTITIONS):
                if (msgid, each) in open_:
                    history.say(msgid, each, now_ms, order, cancelled=PushCancelled())
                    open_.discard((msgid, each))
        case _:
            history.say(msgid, partition, now_ms, None, finished=PushFinished())
            open_.discard((msgid, partition))
