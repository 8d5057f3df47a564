"""Writes batches of records into the analytics store, each record exactly once, whenever the process dies.

A batch is translated, noted in the offsets file, inserted table by table, and then acknowledged there. One batch may be
translated while the batch before it is written. All calls with state run on one thread.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from analytics.ingestion.attributes import AttributeHistory, CountedAttributes
from analytics.ingestion.attributes import load as load_attributes
from analytics.ingestion.connections.history import load as load_connections
from analytics.ingestion.connections.spans import LatestConnections
from analytics.ingestion.device_references import earliest_starts, session_ends
from analytics.ingestion.known_ids import BroadcastIds, KnownDevices
from analytics.ingestion.outcomes import ACKS_TABLE, OutcomeBatch
from analytics.ingestion.translation import RecordTranslator, TranslationContext
from analytics.store.clickhouse import ClickHouse
from analytics.store.offsets import Batch, Offsets, Range, insert_token
from services.domain.topics import SESSIONS, decode
from services.log.port import Partition, Record, RecordMark, last_marks
from services.process.crashpoint import Point, reached
from services.process.metrics import INSERTED
from services.process.retries import retry_until_available
from services.replica.dead_letters import UNUSABLE, DeadLetters
from services.replica.epochs import Epochs

# The ingesters of the analytics store: the identity under which each instance fills it.
#
# Rows that add up (SUMS) carry the identity, so that sums of a replaced ingester do not count twice.

SUMS = ("connection_changes", "connection_hours", "connection_days")
"""Tables whose rows add up; each ingester's rows are one ClickHouse partition."""

_IDENTITY = "SELECT identity FROM ingesters FINAL WHERE instance = {instance:String}"
_REGISTER = "INSERT INTO ingesters (instance, identity) SELECT {instance:String}, {identity:String}"
_REGISTERED = "SELECT identity FROM ingesters FINAL"
_DELETE_OTHER_SHARDS = """
DELETE FROM ingesters WHERE splitByChar('/', instance)[-1] != splitByChar('/', {instance:String})[-1]
"""


async def is_registered(clickhouse: ClickHouse, instance: str, identity: str) -> bool:
    """Return whether the store is filled by this identity of the instance."""
    rows = await clickhouse.rows(_IDENTITY, {"instance": instance})
    return [identity] == [found for (found,) in rows]


async def register(clickhouse: ClickHouse, instance: str, identity: str) -> None:
    """Make this identity the instance's ingester. `instance` is SHARD/SHARDS; other numbers of shards are dropped.

    It fills the store again, with the attributes that devices have then, so counts stored by attributes are deleted.
    """
    await clickhouse.command("TRUNCATE TABLE broadcast_counts")
    await clickhouse.command(_DELETE_OTHER_SHARDS, {"instance": instance})
    await clickhouse.command(_REGISTER, {"instance": instance, "identity": identity})


async def drop_replaced(clickhouse: ClickHouse) -> None:
    """Drop the sums of ingesters that were replaced; queries ignore them already."""
    for table in SUMS:
        found = await clickhouse.rows(f"SELECT DISTINCT ingester FROM {table}")  # noqa: S608
        registered = {identity for (identity,) in await clickhouse.rows(_REGISTERED)}
        for (identity,) in found:
            if identity not in registered:
                await clickhouse.command(
                    f"ALTER TABLE {table} DROP PARTITION {{identity:String}}", {"identity": identity}
                )


_NOT_NOTED = "the offsets of analytics cannot be written"
Result = TypeVar("Result")


class TranslatedBatch(NamedTuple):
    """A batch of records and the rows to insert for it.

    `epochs`: the highest epoch of each partition up to these records; `newest_ms`: the time of the newest push
    command up to them.
    """

    records: Sequence[Record]
    tables: Mapping[str, pa.Table]
    epochs: Mapping[Partition, int]
    newest_ms: int


class BatchWriter:
    """Writes batches between `open` and `close`; call `load` before the first one."""

    def __init__(
        self,
        clickhouse: ClickHouse,
        offsets_file: Path,
        dead_letters: DeadLetters,
        *,
        instance: str,
        stores_commands: bool,
    ) -> None:
        """`instance` is SHARD/SHARDS; only one instance of a store `stores_commands`, that is push commands."""
        self.newest_ms = 0
        """When the newest push command in the store was written, in milliseconds since 1970 UTC."""
        self._clickhouse = clickhouse
        self._offsets_file = offsets_file
        self._dead_letters = dead_letters
        self._instance = instance
        self._stores_commands = stores_commands
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="analytics")
        self._identity = ""
        self._writes_ahead = 0
        self._context: TranslationContext
        self._translator: RecordTranslator
        self._offsets: Offsets

    async def open(self) -> None:
        self._offsets = await self._on_thread(Offsets, self._offsets_file)

    async def close(self) -> None:
        await self._on_thread(self._offsets.close)
        self._thread.shutdown()

    async def load(self) -> dict[Partition, int]:
        """Load from the store what the batches need, and return the next offsets. May be called again if it fails."""
        self._identity = await self._registered_identity()
        offsets = await self.next_offsets()
        epochs = await self.epochs()
        attributes = CountedAttributes()
        self._context = context = TranslationContext(
            AttributeHistory(attributes), BroadcastIds(), KnownDevices(), LatestConnections(), epochs
        )
        of_sessions = {p.number: end for p, end in offsets.items() if p.topic == SESSIONS.name}
        await load_attributes(attributes, self._clickhouse)
        await context.history.load(self._clickhouse, of_sessions)
        await context.devices.load(self._clickhouse)
        await context.broadcasts.load(self._clickhouse)
        self.newest_ms = context.broadcasts.newest_ms
        await load_connections(context.connections, attributes, self._clickhouse, of_sessions)
        self._translator = RecordTranslator(context, self._identity, stores_commands=self._stores_commands)
        return offsets

    async def next_offsets(self) -> dict[Partition, int]:
        return await self._on_thread(self._offsets.next_offsets)

    async def marks(self) -> dict[Partition, RecordMark]:
        """Return the marks of the last records that were ingested."""
        return await self._on_thread(self._offsets.marks)

    async def pending(self) -> Batch:
        """Return the batch that was noted and not acknowledged before the last end of the process, if any."""
        return await self._on_thread(self._offsets.pending)

    async def unknown_device_partitions(self, records: Sequence[Record]) -> set[int]:
        """Return the partitions of `devices` that have to be read before these records."""
        return await self._on_thread(self._translator.unknown_device_partitions, records)

    async def session_ends(self, records: Sequence[Record]) -> dict[Partition, int]:
        """Return the offsets up to which partitions of `sessions` are to be read before these records."""
        return await self._on_thread(session_ends, records)

    async def translate(self, records: Sequence[Record]) -> TranslatedBatch:
        """Translate a new batch; it is to be written before any batch that is translated later."""
        history = self._context.history
        for partition, until in (await self._on_thread(earliest_starts, records)).items():
            if until < history.known_from(partition):
                rows = await history.load_former(self._clickhouse, partition, until)
                await self._on_thread(history.add_former, partition, until, rows)
        return await self._on_thread(self._translated, records)

    async def write(self, translated: TranslatedBatch) -> dict[Partition, int]:
        """Write a new batch; return the next offset of each of its partitions."""
        batch = _ranges(translated.records)
        reached(Point.RANGE_GATHERED)
        await retry_until_available(_NOT_NOTED, lambda: self._on_thread(self._offsets.begin, batch))
        reached(Point.RANGE_NOTED)
        await self._insert_all(batch, translated.tables)
        reached(Point.RANGE_INSERTED)
        await retry_until_available(_NOT_NOTED, lambda: self._end(batch, translated))
        reached(Point.RANGE_ENDED)
        return {partition: range_.next for partition, range_ in batch.items()}

    async def write_pending(self, batch: Batch, records: Sequence[Record]) -> None:
        """Write the pending batch again; the store drops the rows that it has already."""
        translated = await self.translate(records)
        await self._insert_all(batch, translated.tables)
        await self._end(batch, translated)

    async def epochs(self) -> Epochs:
        """Return the highest epochs of the partitions before their next offsets."""
        return Epochs(await self._on_thread(self._offsets.epochs))

    async def write_ahead(
        self, appkey: str, pages: AsyncIterable[Sequence[Record]], batch: Batch, epochs: Epochs, max_rows: int
    ) -> bool:
        """Write one app's outcomes among records whose ranges are `batch`, ahead of the log's order.

        `epochs` are the highest before the ranges, and are updated to those after them. Return False, and write
        nothing, if there are more than `max_rows`. The ingestion reaches these records later and writes the same rows
        again; ClickHouse replaces the first by the second.
        """
        outcomes = self._translator.outcomes_of(appkey)
        self._writes_ahead += 1
        try:
            async for records in pages:
                await self._on_thread(_add_outcomes, outcomes, records, epochs)
                if outcomes.row_count > max_rows:
                    return False
            tables = await self._on_thread(outcomes.tables)
        finally:
            self._writes_ahead -= 1
        for name, rows in tables.items():
            await self._insert(name, rows, insert_token(self._identity, f"{name} of {appkey}", batch))
        return True

    async def _registered_identity(self) -> str:
        """Return this ingester's identity. A store that it did not fill is filled from the beginning.

        Nothing is counted twice then: rows of the same record replace each other, and sums carry the identity.
        """
        identity = await self._on_thread(self._offsets.identity)
        if identity is None or not await is_registered(self._clickhouse, self._instance, identity):
            identity = await self._on_thread(self._offsets.restart)
            await register(self._clickhouse, self._instance, identity)
        await drop_replaced(self._clickhouse)
        return identity

    def _translated(self, records: Sequence[Record]) -> TranslatedBatch:
        tables = self._translator.tables(records, self._dead_letters.add)
        context = self._context
        if not self._writes_ahead:  # outcomes being written ahead hold codes, which must not be reused
            context.history.attributes.free_unused(context.mark_values)
        return TranslatedBatch(records, tables, context.epochs.highest(), context.broadcasts.newest_ms)

    async def _end(self, batch: Batch, translated: TranslatedBatch) -> None:
        await self._on_thread(self._offsets.end, batch, translated.epochs, last_marks(translated.records))
        self.newest_ms = translated.newest_ms

    async def _insert_all(self, batch: Batch, tables: Mapping[str, pa.Table]) -> None:
        """Insert into all tables: last into `acks`, whose readers look in `deliveries` for earlier receipts."""
        acks = ACKS_TABLE.name
        for names in ([name for name in tables if name != acks], [name for name in tables if name == acks]):
            await asyncio.gather(
                *(self._insert(name, tables[name], insert_token(self._identity, name, batch)) for name in names)
            )

    async def _insert(self, table: str, rows: pa.Table, token: str) -> None:
        message = f"rows for {table} cannot be inserted"
        await retry_until_available(message, lambda: self._clickhouse.insert(table, rows, token))
        INSERTED.labels(table).inc(rows.num_rows)

    async def _on_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _add_outcomes(outcomes: OutcomeBatch, records: Sequence[Record], epochs: Epochs) -> None:
    """Add outcomes; leave out undecodable records (which become dead letters in their turn) and records of former
    owners.
    """
    for record in records:
        with suppress(*UNUSABLE):
            message = decode(record)
            if epochs.admits(record, message):
                outcomes.add(record, message)


def _ranges(records: Sequence[Record]) -> dict[Partition, Range]:
    ranges: dict[Partition, Range] = {}
    for record in records:
        partition = Partition(record.topic, record.partition)
        first = ranges[partition].first if partition in ranges else record.offset
        ranges[partition] = Range(first, record.offset + 1)
    return ranges
