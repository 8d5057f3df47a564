"""The log into the analytics store, each record exactly once, whenever the process dies.

One loop: gather records for a moment, note the batch, insert it table by table, note that it is in. While one batch is
being inserted the next is gathered, and no more than that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from analytics.ingestion.attributes import DeviceAttributes, load
from analytics.ingestion.batches import Gathering, Pace
from analytics.ingestion.broadcast_ids import Broadcasts
from analytics.ingestion.connection_history import load as load_spans
from analytics.ingestion.connection_spans import Spans
from analytics.ingestion.ingesters import forget_others, stand, stands
from analytics.ingestion.registrations import Registrations
from analytics.ingestion.rows import SOURCES, Translation
from analytics.settings import ROLE_NAME
from analytics.store.clickhouse import ClickHouse
from analytics.store.offsets import Batch, Offsets, Range, token
from services.domain.topics import DEVICES, PUSH_COMMANDS, SESSIONS
from services.runtime.errors import UnavailableError
from services.runtime.log.port import Log, Partition, Record, check_offsets
from services.runtime.log.topics import Topic, owned
from services.runtime.process.crashpoint import Point, reached
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APPLIED, INSERTED, LAG
from services.runtime.process.retries import retry_until_available
from services.runtime.projection.dead_letters import DeadLetters
from services.runtime.projection.positions import AppliedPositions

_NO_ANSWER = "the log or the analytics store does not answer"
_NOT_NOTED = "how far analytics came cannot be noted"
_LAG_S = 5.0
Result = TypeVar("Result")


def sources(installation: int, shard: int = 0, shards: int = 1) -> list[Partition]:
    """What one instance reads: its share, and push commands, which say what a receipt belongs to."""
    return [
        Partition(topic.name, number)
        for topic in SOURCES
        for number in ([0] if topic is PUSH_COMMANDS else owned(topic.partitions(installation), shard, shards))
    ]


class Ingestion:
    """A service. The store is open and migrated while it runs; `catch_up` may be called all the time."""

    name = "analytics ingestion"

    def __init__(
        self,
        log: Log,
        clickhouse: ClickHouse,
        state: Path,
        dead_letters: DeadLetters,
        reads: Sequence[Partition],
        *,
        instance: str = "0/1",
        stores_commands: bool = True,
        pace: Pace | None = None,
    ) -> None:
        """`state` is the file that keeps the offsets; `instance` names this reader among those of the same store,
        of which one `stores_commands`: push commands."""
        self.applied = AppliedPositions()
        self._log = log
        self._clickhouse = clickhouse
        self._state = state
        self._dead_letters = dead_letters
        self._instance = instance
        self._stores_commands = stores_commands
        self._pace = pace or Pace()
        self._next = dict.fromkeys(reads, 0)
        self._hurry = asyncio.Event()
        self._waiting = 0
        self._broadcasts = Broadcasts()
        self._translation: Translation
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=ROLE_NAME)
        self._offsets: Offsets
        self._identity = ""
        self.applied.advance(self._next)

    async def run(self, ready: asyncio.Event) -> None:
        """Heal what the last run left half done, then follow for ever.

        Ready once the store has answered and either everything in the log by now is in it or `Pace.ready_s` went by.
        """
        self._offsets = await self._on_thread(Offsets, self._state)
        watching: asyncio.Task[None] | None = None
        try:
            await retry_until_available(_NO_ANSWER, self._recover)
            watching = asyncio.create_task(self._watch(ready))
            devices = [partition for partition in self._next if partition.topic == DEVICES.name]
            await retry_until_available(_NO_ANSWER, lambda: self._know_devices(devices))
            await self._follow()
        finally:
            if watching:
                watching.cancel()
            await self._on_thread(self._offsets.close)
            self._thread.shutdown()

    async def catch_up(self) -> int:
        """Take everything that is in the log now, without delay. Returns how many records were missing at the end."""
        ends = await self._log.ends(self._next)
        self._waiting += 1
        self._hurry.set()
        try:
            async with asyncio.timeout(self._pace.catch_up_s):
                await self.applied.wait((partition, end - 1) for partition, end in ends.items() if end)
        except TimeoutError:
            return self._behind(ends)
        else:
            return 0
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._hurry.clear()

    def ends(self, topic: Topic) -> dict[int, int]:
        """For each partition of the topic that is read here, the offset up to which everything is in the store."""
        return {partition.number: offset for partition, offset in self._next.items() if partition.topic == topic.name}

    async def know_pushes(self, until_ms: int) -> None:
        """Return once every push command written until then is in the store. UnavailableError: that takes longer."""
        commands = Partition(PUSH_COMMANDS.name, 0)
        if commands in self._next and self._broadcasts.newest_ms <= until_ms:
            end = (await self._log.ends([commands]))[commands]
            if self._next[commands] < end and (behind := await self.catch_up()):
                raise UnavailableError(f"analytics is {behind} records behind the event log; try again later")

    async def apply_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Replay: take everything up to the ends and stop; see replay.Fold."""
        self._offsets = await self._on_thread(Offsets, self._state)
        try:
            await self._recover()
            await self._fold({p: end for p, end in ends.items() if p.topic == DEVICES.name}, on_batch)
            await self._fold(ends, on_batch)
        finally:
            await self._on_thread(self._offsets.close)
            self._thread.shutdown()

    async def _fold(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        while behind := {p: end for p, end in ends.items() if self._next.get(p, end) < end}:
            reader = await self._log.open({p: self._next[p] for p in behind})
            try:
                records = await reader.read(self._pace.max_records)
            finally:
                await reader.close()
            before = sum(self._next.values())
            await _finished(self._ingest(records[: self._pace.fitting(records)]), self._pace.stop_s)
            on_batch(sum(self._next.values()) - before)

    async def _know_devices(self, partitions: Sequence[Partition]) -> None:
        """Take what is in the log of these partitions of `devices`: what is stored says what devices were like."""
        await self._fold(await self._log.ends(partitions), lambda count: None)

    async def _recover(self) -> None:
        """Come to a state without a batch half in. May be called again when it failed."""
        self._identity = await self._known_identity()
        self._translation = await self._knowing(await self._on_thread(self._offsets.next_offsets))
        batch = await self._on_thread(self._offsets.pending)
        seen = {partition: range_.next for partition, range_ in batch.items()}
        await check_offsets(self._log, ROLE_NAME, await self._on_thread(self._offsets.next_offsets) | seen)
        if batch:
            logger.info("analytics takes a batch again", partitions=len(batch))
            await self._insert_all(batch, await self._read_again(batch))
            await self._on_thread(self._offsets.end, batch)
        self._advance(await self._on_thread(self._offsets.next_offsets))

    async def _knowing(self, ends: Mapping[Partition, int]) -> Translation:
        """What is known of devices, pushes and connections by what was read until then."""
        attributes, registrations, spans = DeviceAttributes(), Registrations(), Spans()
        self._broadcasts = Broadcasts()
        await load(attributes, self._clickhouse)
        await registrations.load(self._clickhouse)
        await self._broadcasts.load(self._clickhouse)
        of_sessions = {p.number: end for p, end in ends.items() if p.topic == SESSIONS.name}
        await load_spans(spans, attributes, self._clickhouse, of_sessions)
        known = (attributes, self._broadcasts, registrations, spans)
        return Translation(*known, self._identity, stores_commands=self._stores_commands)

    async def _known_identity(self) -> str:
        """This reader's identity; a store that another reader filled, or nobody, is filled from the beginning.

        Nothing doubles by that: rows of the same record replace each other, and sums bear the identity.
        """
        mine = await self._on_thread(self._offsets.identity)
        if mine is None or not await stands(self._clickhouse, self._instance, mine):
            mine = await self._on_thread(self._offsets.restart)
            await stand(self._clickhouse, self._instance, mine)
        await forget_others(self._clickhouse)
        return mine

    async def _read_again(self, batch: Batch) -> list[Record]:
        """The records of the ranges; what was compacted away since then was replaced by later ones."""
        records = []
        for partition, (first, following) in batch.items():
            reader = await self._log.open({partition: first})
            try:
                while first < following:
                    read = await reader.read(following - first)
                    records += [record for record in read if record.offset < following]
                    first = read[-1].offset + 1
            finally:
                await reader.close()
        return records

    async def _follow(self) -> None:
        reader = await retry_until_available(_NO_ANSWER, lambda: self._log.open(self._next))
        gathering = Gathering(reader, self._pace, self._hurry)
        following = asyncio.create_task(gathering.batch())
        try:
            while True:
                records = await following
                following = asyncio.create_task(gathering.batch())
                await _finished(self._take(records), self._pace.stop_s)
        finally:
            following.cancel()
            await gathering.close()

    async def _take(self, records: Sequence[Record]) -> None:
        """Take in what is not in yet. Devices that it names come first: their records were appended before."""
        records = self._not_taken(records)
        if unknown := await self._on_thread(self._translation.unknown, records):
            partitions = [p for p in self._next if p.topic == DEVICES.name and p.number in unknown]
            await retry_until_available(_NO_ANSWER, lambda: self._know_devices(partitions))
            records = self._not_taken(records)
        if records:
            await self._ingest(records)

    def _not_taken(self, records: Sequence[Record]) -> list[Record]:
        return [record for record in records if record.offset >= self._next[Partition(record.topic, record.partition)]]

    async def _ingest(self, records: Sequence[Record]) -> None:
        batch = _ranges(records)
        reached(Point.RANGE_GATHERED)
        await retry_until_available(_NOT_NOTED, lambda: self._on_thread(self._offsets.begin, batch))
        reached(Point.RANGE_NOTED)
        await self._insert_all(batch, records)
        reached(Point.RANGE_INSERTED)
        await retry_until_available(_NOT_NOTED, lambda: self._on_thread(self._offsets.end, batch))
        reached(Point.RANGE_ENDED)
        self._advance({partition: range_.next for partition, range_ in batch.items()})
        for record in records:
            APPLIED.labels(ROLE_NAME, record.topic).inc()

    async def _insert_all(self, batch: Batch, records: Sequence[Record]) -> None:
        tables = await self._on_thread(self._translation.tables, records, self._dead_letters.add)
        await asyncio.gather(
            *(self._insert(table, rows, token(self._identity, table, batch)) for table, rows in tables.items())
        )

    async def _insert(self, table: str, rows: pa.Table, token_: str) -> None:
        message = f"rows for {table} cannot be inserted"
        await retry_until_available(message, lambda: self._clickhouse.insert(table, rows, token_))
        INSERTED.labels(table).inc(rows.num_rows)

    async def _watch(self, ready: asyncio.Event) -> None:
        """Say ready, and measure the lag again and again."""
        goal = await self._ends()
        try:
            async with asyncio.timeout(self._pace.ready_s):
                await self.applied.wait((partition, end - 1) for partition, end in goal.items() if end)
        except TimeoutError:
            logger.warning("analytics starts behind the log", records=self._behind(goal))
        ready.set()
        while True:
            await asyncio.sleep(_LAG_S)
            self._measure(await self._ends())

    async def _ends(self) -> dict[Partition, int]:
        return await retry_until_available(_NO_ANSWER, lambda: self._log.ends(self._next))

    def _measure(self, ends: Mapping[Partition, int]) -> None:
        for topic in SOURCES:
            LAG.labels(ROLE_NAME, topic.name).set(
                self._behind({p: end for p, end in ends.items() if p.topic == topic.name})
            )

    def _behind(self, ends: Mapping[Partition, int]) -> int:
        return sum(max(0, end - self._next[partition]) for partition, end in ends.items())

    def _advance(self, offsets: Mapping[Partition, int]) -> None:
        read = {partition: offset for partition, offset in offsets.items() if partition in self._next}
        self._next.update(read)
        self.applied.advance(read)

    async def _on_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _ranges(records: Sequence[Record]) -> dict[Partition, Range]:
    ranges: dict[Partition, Range] = {}
    for record in records:
        partition = Partition(record.topic, record.partition)
        first = ranges[partition].first if partition in ranges else record.offset
        ranges[partition] = Range(first, record.offset + 1)
    return ranges


async def _finished(work: Awaitable[None], stop_s: float) -> None:
    """Run the work; when cancelled, let it come to its end for a bounded time."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=stop_s)
        task.cancel()
        raise
