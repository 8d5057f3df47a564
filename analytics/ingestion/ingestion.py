"""Reads the log into the analytics store, each record exactly once.

One loop reads a batch, translates it and writes it. While one batch is being written the next one is read and
translated, and no more than that. The reader alternates between outcomes, of which one app may have very many, and all
other topics. A question waits for the topics that its answer is made of, and for the outcomes of its app alone.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from analytics.ingestion.batch_reader import (
    BatchReader,
    IngestionLimits,
    ReadersInTurn,
    nothing,
    run_to_end,
    until_done,
)
from analytics.ingestion.batch_writer import BatchWriter, TranslatedBatch
from analytics.ingestion.look_ahead import LookAhead
from analytics.ingestion.tables.actions import ACTIONS_TABLE
from analytics.ingestion.translation import SOURCES
from analytics.settings import ROLE_NAME
from analytics.store.changes import StoreChanges
from analytics.store.clickhouse import ClickHouse
from analytics.store.offsets import Batch
from services.domain.topics import DELIVERIES, DEVICES, PUSH_COMMANDS, PUSHES, SESSIONS
from services.errors import UnavailableError
from services.log.identity import check_log_identity
from services.log.monitored import EndsHistory
from services.log.port import Log, Partition, Reader, Record, check_offsets
from services.log.topics import Topic, owned
from services.process import background
from services.process.logs import logger
from services.process.metrics import APPLIED, LAG, LAG_SECONDS
from services.process.retries import retry_until_available
from services.replica.dead_letters import DeadLetters
from services.replica.merge import MergedReader
from services.replica.positions import AppliedPositions

# Recent ends of the log, as of which questions that do not need the newest records are answered.
#
# Ingesting a small batch takes as much CPU time as answering several questions. So the questions of a few seconds
# wait for the same batch.

_KEPT = 16


class RecentEnds:
    """The ends of all partitions at the moments of the latest questions."""

    def __init__(self, log: Log, partitions: Sequence[Partition]) -> None:
        self._log = log
        self._partitions = partitions
        self._found: deque[tuple[float, Mapping[Partition, int]]] = deque(maxlen=_KEPT)

    async def at_most_ms_old(self, max_age_ms: int) -> Mapping[Partition, int]:
        """Return the ends of all partitions at the earliest known moment that is at most `max_age_ms` ago."""
        now_ms = asyncio.get_running_loop().time() * 1000
        for found_ms, ends in self._found:
            if found_ms > now_ms - max_age_ms:
                return ends
        ends = await self._log.ends(self._partitions)
        self._found.append((now_ms, ends))
        return ends


_NO_ANSWER = "the log or the analytics store does not answer"
_LAG_S = 5.0
_OF_STARTS = (SESSIONS.name, PUSHES.name)

_AHEAD_MS = 1000
"""By how much sessions are read ahead of pushes in a replay, as starts name offsets that the log had by then."""


def sources(installation: int, shard: int = 0, shards: int = 1) -> list[Partition]:
    """Return the partitions that one instance reads: its share, and push commands, which every instance needs."""
    return [
        Partition(topic.name, number)
        for topic in SOURCES
        for number in ([0] if topic is PUSH_COMMANDS else owned(topic.partitions(installation), shard, shards))
    ]


class Ingestion:
    """A service that reads the log into an open and migrated store; call `catch_up` at any time."""

    name = "analytics ingestion"

    def __init__(
        self,
        log: Log,
        clickhouse: ClickHouse,
        offsets_file: Path,
        dead_letters: DeadLetters,
        partitions: Sequence[Partition],
        *,
        instance: str = "0/1",
        stores_commands: bool = True,
        limits: IngestionLimits | None = None,
        begins: Mapping[Partition, int] = MappingProxyType({}),
    ) -> None:
        """`partitions`: those to read. `instance` and `stores_commands`: see BatchWriter.

        `begins`: from which offsets on the archive has records, where it has an end.
        """
        self.applied = AppliedPositions()
        self.changes = StoreChanges(apart=(ACTIONS_TABLE.name,))
        self._log = log
        self._directory = offsets_file.parent
        self._limits = limits or IngestionLimits()
        self._writer = BatchWriter(
            clickhouse, offsets_file, dead_letters, instance=instance, stores_commands=stores_commands
        )
        self._look_ahead = LookAhead(log, self._writer)
        self._batches: BatchReader | None = None
        self._next = {partition: begins.get(partition, 0) for partition in partitions}
        self._log_ends = EndsHistory()
        self._recent_ends = RecentEnds(log, partitions)
        self._flush = asyncio.Event()
        self._waiting = 0
        self.applied.advance(self._next)

    async def run(self, ready: asyncio.Event) -> None:
        """Write the batch that the last run left pending, then follow the log for ever.

        Ready once the store has answered and either everything in the log by now is in it or `ready_s` went by.
        """
        await self._writer.open()
        watching: asyncio.Task[None] | None = None
        try:
            await retry_until_available(_NO_ANSWER, self._recover)
            watching = background.start_endless("lag of the ingestion", self._watch(ready))
            devices = [partition for partition in self._next if partition.topic == DEVICES.name]
            await retry_until_available(_NO_ANSWER, lambda: self._write_devices(devices))
            await self._follow()
        finally:
            if watching:
                watching.cancel()
            await self._writer.close()

    async def catch_up(self, topics: Collection[Topic] = SOURCES, appkey: str = "", max_age_ms: int = 0) -> int:
        """Ingest what is in these topics now, without delay; with an appkey, the outcomes of that app alone.

        Of what was appended in the last `max_age_ms` milliseconds some may be left for later. Return how many records
        were missing at the end.
        """
        names = {topic.name for topic in topics}
        if max_age_ms:
            found = await self._recent_ends.at_most_ms_old(max_age_ms)
            ends = {partition: end for partition, end in found.items() if partition.topic in names}
        else:
            ends = await self._log.ends(partition for partition in self._next if partition.topic in names)
        return await self._flush_until(ends, self._limits.catch_up_s, appkey) if self._behind(ends) else 0

    async def _flush_until(self, ends: Mapping[Partition, int], seconds: float, appkey: str = "") -> int:
        """Write batches without delay up to the ends, for `seconds` at most; return how many records are missing."""
        self._waiting += 1
        self._flush.set()
        try:
            async with asyncio.timeout(seconds):
                await self._wait(ends, appkey)
        except TimeoutError:
            return self._behind(ends)
        else:
            return 0
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._flush.clear()

    async def _wait(self, ends: Mapping[Partition, int], appkey: str) -> None:
        """Wait until the ends are ingested; during a backlog, look ahead for the app's outcomes."""
        of_outcomes = {p: end for p, end in ends.items() if p.topic == DELIVERIES.name}
        await self.applied.wait((p, end - 1) for p, end in ends.items() if end and p not in of_outcomes)
        while self._behind(of_outcomes):
            change = self.applied.change
            if appkey and self._batches and self._batches.is_behind:
                reached = self.applied.next_offsets(of_outcomes)
                is_ingested = await self._look_ahead.ingest(appkey, reached, of_outcomes)
                self.changes.note_app(appkey)
                if is_ingested:
                    return
                appkey = ""
            await change.wait()

    def ends(self, topic: Topic) -> dict[int, int]:
        """Return, for each partition of the topic that is read here, the offset before which all is in the store."""
        return {partition.number: offset for partition, offset in self._next.items() if partition.topic == topic.name}

    async def ingest_push_commands(self, until_ms: int) -> None:
        """Return once every push command written until then is in the store. UnavailableError: that takes longer."""
        commands = Partition(PUSH_COMMANDS.name, 0)
        if commands in self._next and self._writer.newest_ms <= until_ms:
            end = (await self._log.ends([commands]))[commands]
            if self._next[commands] < end and (behind := await self.catch_up([PUSH_COMMANDS])):
                raise UnavailableError(f"analytics is {behind} records behind the event log; try again later")

    async def apply_until(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Ingest everything up to the ends, devices first, and return; see `runtime.projection.replay`."""
        await self._writer.open()
        try:
            await self._recover()
            await self._fold({p: end for p, end in ends.items() if p.topic == DEVICES.name}, on_batch)
            await self._fold_by_time({p: end for p, end in ends.items() if p.topic in _OF_STARTS}, on_batch)
            await self._fold(ends, on_batch)
        finally:
            await self._writer.close()

    async def _fold_by_time(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        """Ingest these partitions up to the ends, merged by time: an audience counts under attributes of its time."""
        behind = {p: end for p, end in ends.items() if self._next.get(p, end) < end}
        merged = MergedReader(self._log, self._next, behind, {SESSIONS.name: _AHEAD_MS})
        records: list[Record] = []
        try:
            async for batch in merged.batches():
                records += [timed.record for timed in batch]
                if len(records) >= self._limits.max_records:
                    await self._write_now(records, on_batch)
                    records = []
            if records:
                await self._write_now(records, on_batch)
        finally:
            await merged.close()

    async def _write_now(self, records: Sequence[Record], on_batch: Callable[[int], None]) -> None:
        before = sum(self._next.values())
        batch = await self._writer.translate(records)
        await run_to_end(self._write(batch), self._limits.stop_s)
        on_batch(sum(self._next.values()) - before)

    async def _fold(self, ends: Mapping[Partition, int], on_batch: Callable[[int], None]) -> None:
        while behind := {p: end for p, end in ends.items() if self._next.get(p, end) < end}:
            reader = await self._log.open({p: self._next[p] for p in behind})
            try:
                records = await reader.read(self._limits.max_records)
            finally:
                await reader.close()
            await self._write_now(records[: self._limits.batch_length(records)], on_batch)

    async def _write_sessions(self, ends: Mapping[Partition, int]) -> None:
        """Ingest sessions up to these offsets or the log's ends; the devices that they refer to come first."""
        in_log = await self._log.ends(ends)
        ends = {partition: min(end, in_log[partition]) for partition, end in ends.items()}
        while behind := {p: end for p, end in ends.items() if self._next.get(p, end) < end}:
            reader = await self._log.open({p: self._next[p] for p in behind})
            try:
                records = await reader.read(self._limits.max_records)
            finally:
                await reader.close()
            records = records[: self._limits.batch_length(records)]
            if unknown := await self._writer.unknown_device_partitions(records):
                await self._write_devices(self._partitions_of(DEVICES, unknown))
            await self._write_now(records, lambda count: None)

    def _partitions_of(self, topic: Topic, numbers: Collection[int]) -> list[Partition]:
        return [p for p in self._next if p.topic == topic.name and p.number in numbers]

    async def _write_devices(self, partitions: Sequence[Partition]) -> None:
        """Ingest all that is in these partitions of `devices`; other records are stored with devices' attributes."""
        await self._fold(await self._log.ends(partitions), lambda count: None)

    async def _recover(self) -> None:
        """Load the writer and write its pending batch. May be called again when it failed."""
        offsets = await self._writer.load()
        batch = await self._writer.pending()
        ends = {partition: range_.next for partition, range_ in batch.items()}
        check_log_identity(self._directory, self._log, ROLE_NAME)
        await check_offsets(self._log, ROLE_NAME, offsets | ends, await self._writer.marks())
        if batch:
            logger.info("analytics writes its pending batch again", partitions=len(batch))
            await self._writer.write_pending(batch, await self._read_again(batch))
            self.changes.note_all()
        self._advance(await self._writer.next_offsets())

    async def _read_again(self, batch: Batch) -> list[Record]:
        """Return the records of the ranges that compaction has left; later records replace the others."""
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
        outcomes = {partition for partition in self._next if partition.topic == DELIVERIES.name}
        readers = [await self._open(group) for group in (self._next.keys() - outcomes, outcomes)]
        self._batches = batches = BatchReader(ReadersInTurn(readers), self._limits, self._flush)
        reading = asyncio.create_task(batches.batch())
        writing = asyncio.create_task(nothing())
        try:
            while True:
                await until_done(reading, unless_failed=writing)
                batch = await self._translated(reading.result(), writing)
                await asyncio.shield(writing)
                reading = asyncio.create_task(batches.batch())
                writing = asyncio.create_task(self._write(batch))
        finally:
            reading.cancel()
            await asyncio.wait([writing], timeout=self._limits.stop_s)
            writing.cancel()
            await batches.close()

    async def _open(self, partitions: Collection[Partition]) -> Reader:
        starts = {partition: start for partition, start in self._next.items() if partition in partitions}
        return await retry_until_available(_NO_ANSWER, lambda: self._log.open(starts))

    async def _translated(self, records: Sequence[Record], writing: asyncio.Task[None]) -> TranslatedBatch:
        """Translate a batch while another one is written.

        First the devices that it refers to are written, whose records were appended earlier, and the sessions up to
        the offsets that its starts of pushes name, because sessions change attributes.
        """
        records = self._not_ingested(records)
        sessions = {p: end for p, end in (await self._writer.session_ends(records)).items() if self._next[p] < end}
        if sessions:
            await asyncio.shield(writing)
            await retry_until_available(_NO_ANSWER, lambda: self._write_sessions(sessions))
            records = self._not_ingested(records)
        if unknown := await self._writer.unknown_device_partitions(records):
            await asyncio.shield(writing)
            partitions = self._partitions_of(DEVICES, unknown)
            await retry_until_available(_NO_ANSWER, lambda: self._write_devices(partitions))
            records = self._not_ingested(records)
        return await self._writer.translate(records)

    def _not_ingested(self, records: Sequence[Record]) -> list[Record]:
        return [record for record in records if record.offset >= self._next[Partition(record.topic, record.partition)]]

    async def _write(self, batch: TranslatedBatch) -> None:
        if batch.records:
            offsets = await self._writer.write(batch)
            self.changes.note(batch.tables)
            self._advance(offsets)
        for topic, count in Counter(record.topic for record in batch.records).items():
            APPLIED.labels(ROLE_NAME, topic).inc(count)

    async def _watch(self, ready: asyncio.Event) -> None:
        """Set `ready` when the log is ingested or `ready_s` went by, then measure the lag at intervals."""
        if behind := await self._flush_until(await self._ends(), self._limits.ready_s):
            logger.warning("analytics starts behind the log", records=behind)
        ready.set()
        while True:
            await asyncio.sleep(_LAG_S)
            self._measure(await self._ends())

    async def _ends(self) -> dict[Partition, int]:
        return await retry_until_available(_NO_ANSWER, lambda: self._log.ends(self._next))

    def _measure(self, ends: Mapping[Partition, int]) -> None:
        now_ms = asyncio.get_running_loop().time() * 1000
        self._log_ends.note(now_ms, ends)
        LAG_SECONDS.labels(ROLE_NAME).set(self._log_ends.waited_ms(now_ms, self._next) / 1000)
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
