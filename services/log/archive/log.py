"""A log and its archive, read as one log: the records that were moved into the archive first, then those in the log."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from services.errors import ConflictError, UnavailableError
from services.log.archive.store import ArchiveStore, SegmentName, date_of, decode_segment
from services.log.port import DelegatingLog, Log, Partition, Reader, Record, TrimmedError, trimmed


class TrimmableLog(Log, Protocol):
    """A log from which old records can be removed."""

    async def trim(self, partition: Partition, before: int) -> None:
        """Remove the records before an offset, durably, in steps that delay no append for long.

        Readers that have not read them raise TrimmedError. UnavailableError: not all are removed, call again.
        """
        ...


class ArchivedLog(DelegatingLog):
    """The Log port on a log and the archive of its trimmed records; a partition begins where its archive does."""

    def __init__(self, log: TrimmableLog, archive: ArchiveStore) -> None:
        super().__init__(log)
        self.live = log
        self.archive = archive

    async def open(self, starts: Mapping[Partition, int]) -> "ArchivedReader":
        reader = ArchivedReader(self._log, self.archive, starts)
        await reader.prepare()
        return reader

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        begins = await self._log.begins(partitions)
        cut = {partition: begin for partition, begin in begins.items() if begin}
        return begins | (await asyncio.to_thread(self._archived_from, cut) if cut else {})

    async def unarchived_from(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._log.begins(partitions)

    def _archived_from(self, begins: Mapping[Partition, int]) -> dict[Partition, int]:
        return {partition: self._begin(partition, begin) for partition, begin in begins.items()}

    def _begin(self, partition: Partition, begin: int) -> int:
        # Known names may lack a segment that another process has written since.
        for anew in (False, True):
            names = self.archive.names(partition, anew=anew)
            first = contiguous_from(names, begin)
            if not names or first == names[0].first:
                break
        return first


def contiguous_from(names: Sequence[SegmentName], begin: int) -> int:
    """Return the offset from which on the segments, sorted by their names, have every record before `begin`."""
    for name in reversed(names):
        if name.first < begin <= name.end:
            begin = name.first
    return begin


class ArchivedReader:
    """Reads segments while a partition's position lies before the log's first record, and then the log."""

    def __init__(self, log: Log, archive: ArchiveStore, starts: Mapping[Partition, int]) -> None:
        self._log = log
        self._archive = archive
        self._positions = {(partition.topic, partition.number): start for partition, start in starts.items()}
        self._archived: list[Record] = []
        self._reader: Reader | None = None
        self._closed = False

    async def read(self, max_records: int = 5000) -> list[Record]:
        while not self._closed:
            records = await self._next(max_records)
            if records:
                self._positions |= {(record.topic, record.partition): record.offset + 1 for record in records}
                return records
        raise UnavailableError("the reader was closed")

    async def prepare(self) -> None:
        """Open the log, or load a segment, for the next read. ConflictError: neither has the next record."""
        positions = {Partition(*place): position for place, position in self._positions.items()}
        begins = await self._log.begins(positions)
        for partition, position in positions.items():
            if position < begins[partition]:
                self._archived = await asyncio.to_thread(self._load, partition, position, begins[partition])
                return
        try:
            reader = await self._log.open(positions)
        except TrimmedError:
            return  # `begins` has risen since it was asked for
        if self._closed:
            await reader.close()
        self._reader = reader

    async def close(self) -> None:
        self._closed = True
        if self._reader:
            await self._reader.close()

    async def _next(self, max_records: int) -> list[Record]:
        if self._archived:
            records, self._archived = self._archived[:max_records], self._archived[max_records:]
            return records
        if self._reader is None:
            await self.prepare()
            return []
        try:
            return await self._reader.read(max_records)
        except TrimmedError:  # what is missing went to the archive meanwhile
            await self._reader.close()
            self._reader = None
            return []

    def _load(self, partition: Partition, position: int, begin: int) -> list[Record]:
        name = self._segment_with(partition, position)
        if name is None:
            removed = self._archive.begin()
            if position < removed.offsets.get(partition, 0):
                raise ConflictError(
                    f"the next record to read of {partition.topic}/{partition.number} is {position}, and the archive"
                    f" {self._archive.location} has no record from before {removed.offsets[partition]} any more:"
                    f" those are from before {date_of(removed.removed_before_ms)}, and were too old to be kept"
                    " (CARILLON_ARCHIVE_DAYS)"
                )
            raise ConflictError(
                f"{trimmed(partition, position, begin)}. The archive {self._archive.location} lacks them too"
            )
        records = decode_segment(self._log.identity, partition, name, self._archive.read(partition, name))
        return [record for record in records if record.offset >= position]

    def _segment_with(self, partition: Partition, position: int) -> SegmentName | None:
        for anew in (False, True):
            for name in self._archive.names(partition, anew=anew):
                if name.first <= position < name.end:
                    return name
        return None
