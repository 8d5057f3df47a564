"""The service that moves old records from the log into the archive, which bounds the size of the log.

A segment is durable in the archive before its first record is removed from the log. After a kill in between, the next
start finds the segment and removes the rest of its records.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from services.errors import ConflictError, UnavailableError
from services.log.archive.log import ArchivedLog
from services.log.archive.store import decode_segment, encode, lacks_records
from services.log.point_in_time import time_ms
from services.log.port import Partition, Record, TrimmedError
from services.process.clock import Clock
from services.process.crashpoint import Point, reached
from services.process.logs import logger
from services.process.metrics import ARCHIVE_FAILURES, ARCHIVED

DAY_MS = 86_400_000
EVERY_MS = 3_600_000
SEGMENT_BYTES = 1024 * 1024
_RECORD_BYTES = 32
_READ_RECORDS = 500

Offsets = Mapping[Partition, int]


class Archiver:
    """Service that archives records once they are `retention_ms` old: as soon as they fill a segment, or after a day.

    `needed` returns the offsets from which on readers still need the log itself; records from these on are not
    archived. The last record of a partition stays in the log.
    """

    name = "log archive"

    def __init__(
        self,
        log: ArchivedLog,
        clock: Clock,
        partitions: Sequence[Partition],
        retention_ms: int,
        needed: Callable[[], Iterable[Offsets]] = tuple,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._log = log.live
        self._archive = log.archive
        self._clock = clock
        self._partitions = partitions
        self._retention_ms = retention_ms
        self._needed = needed
        self._segment_bytes = segment_bytes

    async def run(self, ready: asyncio.Event) -> None:
        """Archive old records at once, and again every hour. Where the archive fails, the process goes on."""
        ready.set()
        while True:
            try:
                await self.archive_old()
            except (ConflictError, UnavailableError) as error:  # pushes go on: the log still has what is not archived
                ARCHIVE_FAILURES.inc()
                logger.error("old records stay in the log; trying again in an hour", error=str(error))
            await self._clock.sleep_until(self._clock.now_ms() + EVERY_MS)

    async def archive_old(self) -> int:
        """Archive and trim each partition; return how many records went to the archive.

        ConflictError: the archive is damaged, or belongs to another log. UnavailableError: it, or the log, does not
        work.
        """
        count = 0
        ends = await self._log.ends(self._partitions)
        limits = {partition: end - 1 for partition, end in ends.items()}
        for offsets in await asyncio.to_thread(lambda: list(self._needed())):
            limits |= {p: min(limits[p], offset) for p, offset in offsets.items() if p in limits}
        for partition, limit in limits.items():
            count += await self._archive_partition(partition, limit)
        return count

    async def _archive_partition(self, partition: Partition, limit: int) -> int:
        """Archive and trim a partition up to the limit; return how many records went to the archive.

        Another process may do the same at the same time. Each archives records before it trims them, so the segments
        have every record, some perhaps twice; a process that is overtaken goes on where the log begins then.
        """
        count = 0
        while True:
            try:
                archived = await self._trim_archived(partition)
                while archived < limit and (records := await self._old_records(partition, archived, limit)):
                    archived = await self._archive_records(partition, records)
                    count += len(records)
            except TrimmedError:
                continue
            return count

    async def _trim_archived(self, partition: Partition) -> int:
        """Remove the records that the archive has from the log; return the first offset that only the log has."""
        begin = (await self._log.begins([partition]))[partition]
        names = await asyncio.to_thread(partial(self._archive.names, partition, anew=True))
        removed_to = (await asyncio.to_thread(self._archive.begin)).offsets.get(partition, 0)
        archived_to = max((name.end for name in names), default=removed_to)
        if begin > archived_to:
            raise UnavailableError(lacks_records(self._archive.location, partition, begin))
        if archived_to == begin:
            return begin
        end = (await self._log.ends([partition]))[partition]
        if archived_to > end:
            raise ConflictError(
                f"the archive {self._archive.location} has {partition.topic}/{partition.number} up to offset"
                f" {archived_to}, but the log ends at {end}: it belongs to another log. Bring that log back, or the"
                " archive of this one"
            )
        for name in names:
            if name.first <= begin < name.end:
                data = await asyncio.to_thread(self._archive.read, partition, name)
                await asyncio.to_thread(decode_segment, self._log.identity, partition, name, data)
                begin = name.end
                await self._log.trim(partition, begin)
        return begin

    async def _old_records(self, partition: Partition, begin: int, limit: int) -> list[Record]:
        """Return the records of the next segment, or nothing while they are too young or too few."""
        now_ms = self._clock.now_ms()
        records: list[Record] = []
        size = newest_ms = 0
        reader = await self._log.open({partition: begin})
        try:
            while size < self._segment_bytes and begin < limit:
                for record in await reader.read(_READ_RECORDS if records else 1):
                    newest_ms = max(newest_ms, time_ms(self._log.topics, record))
                    begin = record.offset + 1
                    if newest_ms > now_ms - self._retention_ms or begin > limit:
                        break
                    records.append(record)
                    size += len(record.key) + len(record.value) + _RECORD_BYTES
                    if size >= self._segment_bytes:
                        return records
                else:
                    continue
                break
        finally:
            await reader.close()
        is_late = records and time_ms(self._log.topics, records[0]) <= now_ms - self._retention_ms - DAY_MS
        return records if is_late else []

    async def _archive_records(self, partition: Partition, records: list[Record]) -> int:
        end = records[-1].offset + 1
        name, data = await asyncio.to_thread(encode, self._log.identity, partition, end, records)
        reached(Point.SEGMENT_READ)
        await asyncio.to_thread(self._archive.write, partition, name, data)
        reached(Point.SEGMENT_NAMED)
        await self._log.trim(partition, end)
        reached(Point.SEGMENT_TRIMMED)
        ARCHIVED.labels(partition.topic).inc(len(records))
        return end
