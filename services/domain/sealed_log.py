"""The log that seals personal values: the one place on the path of a record, so that no writer can forget it.

It stands outside the log with signed topics: records are sealed, then signed. Values of records stay as stored, so
that marks, signatures, the archive and dead letters never see what is sealed; `decode` merges what a reader opened.
A key with a token in it is stored with the token's name; the partition is that of the key in clear.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from protos.registry.v1.apps_pb2 import AppFact
from protos.registry.v1.erasures_pb2 import ErasureFact
from services.domain.person_keys import SUBJECT
from services.domain.sealing import SEALED_TOPICS, Sealer, sealed_part
from services.domain.topics import ERASURES
from services.errors import UnavailableError
from services.log.port import DelegatingLog, Log, NewRecord, Partition, Reader, Record


class _Stored(NewRecord):
    """A record that a state has marked: `append` does not change it, even if it has begun to seal since."""

    __slots__ = ()


class SealedLog(DelegatingLog):
    """Opens sealed records as they are read; with `seals` it seals those that are appended.

    Of a record whose key is destroyed, or not at hand, names and what is not personal are read. `sealer` is None until
    the process has the keys of persons. Whoever reads the topic `erasures` through this log makes it forget the keys
    that the records name.
    """

    def __init__(self, log: Log, sealer: Sealer | None = None, *, seals: bool = False) -> None:
        super().__init__(log)
        self._sealer = sealer
        self.seals = seals
        self._is_stopped = False
        self._erased: list[bytes] = []

    @property
    def has_keys(self) -> bool:
        return self._sealer is not None

    @property
    def sealer(self) -> Sealer:
        """The keys that it opens and seals with. UnavailableError: the process has none yet."""
        if self._sealer is None:
            raise UnavailableError("this process has not the keys of persons")
        return self._sealer

    def use(self, sealer: Sealer) -> None:
        """Open the records that are read from now on, without the keys that records of `erasures` have named."""
        for subject in self._erased:
            sealer.ring.forget(subject)
        self._erased.clear()
        self._sealer = sealer

    def seal(self) -> None:
        """Seal the records that are appended from now on; the process has the keys."""
        assert self._sealer is not None
        self.seals, self._is_stopped = True, False

    def stop(self) -> None:
        """Append and read no personal values until `seal`: others seal, and this process has not their keys yet."""
        self._is_stopped = True

    def check(self) -> None:
        """Raise UnavailableError while personal values may be neither appended nor read."""
        if self._is_stopped:
            raise UnavailableError("this process has not the keys of persons, with which others seal what they append")

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if self._is_stopped and any(each.topic in SEALED_TOPICS for each in new_records):
            self.check()
        return await self._log.append(self._as_stored(new_records))

    def stored(self, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        return [_Stored(*each) for each in self._as_stored(self._log.stored(new_records))]

    def _as_stored(self, new_records: Sequence[NewRecord]) -> Sequence[NewRecord]:
        return [self._sealed(each) for each in new_records] if self.seals else new_records

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        reader = await self._log.open(starts)
        concerns = any(p.topic in SEALED_TOPICS or p.topic == ERASURES.name for p in starts)
        return _OpeningReader(reader, self) if concerns else reader

    async def last(self, partition: Partition) -> Record | None:
        record = await self._log.last(partition)
        return record and self.opened(record)

    def opened(self, record: Record) -> Record:
        """Return the record with what was sealed of it; one of `erasures` makes the process forget keys."""
        if record.topic == ERASURES.name:
            self._forget(record)
        if self._sealer is None or record.topic not in SEALED_TOPICS:
            return record
        if (sealed := sealed_part(record.value)) is None:
            return record
        return Record(*record[:5], self._sealer.opened(record.topic, sealed))

    def _forget(self, record: Record) -> None:
        try:
            fact = ErasureFact.FromString(record.value)
        except DecodeError:
            return
        for subject in fact.erased.subjects:
            if len(subject) != SUBJECT:
                continue
            if self._sealer is None:
                self._erased.append(subject)
            else:
                self._sealer.ring.forget(subject)

    def _sealed(self, new_record: NewRecord) -> NewRecord:
        if isinstance(new_record, _Stored):
            return new_record
        if self._sealer is None or new_record.topic not in SEALED_TOPICS or sealed_part(new_record.value) is not None:
            return new_record
        topic = self.topics[new_record.topic]
        envelope: Any = topic.envelope()
        try:
            envelope.ParseFromString(new_record.value)
        except DecodeError:
            return new_record
        sealed = self._sealer.sealed(new_record.topic, new_record.partition, envelope)
        if sealed is None:
            return new_record
        trailer = AppFact()  # of any topic: the envelopes of all begin with `meta`
        trailer.meta.sealed = sealed
        key = (topic.key_of(envelope) if topic.key_of else None) or new_record.key
        return NewRecord(*new_record[:2], key, envelope.SerializeToString() + trailer.SerializeToString())


class _OpeningReader:
    """A reader that opens the records which another one returns."""

    def __init__(self, reader: Reader, log: SealedLog) -> None:
        self._reader = reader
        self._log = log
        self._read: list[Record] = []

    async def read(self, max_records: int = 5000) -> list[Record]:
        if not self._read:
            self._read = await self._reader.read(max_records)
        self._log.check()
        records, self._read = self._read, []
        return [self._log.opened(record) for record in records]

    async def close(self) -> None:
        await self._reader.close()


def sealed_log_of(log: Log) -> SealedLog | None:
    """Return the SealedLog below which a log's records pass; None: there is none."""
    while isinstance(log, DelegatingLog):
        if isinstance(log, SealedLog):
            return log
        log = log._log
    return None


def sealer_of(log: Log) -> Sealer | None:
    """Return what the log opens sealed records with; None: it does not."""
    sealed = sealed_log_of(log)
    return sealed.sealer if sealed and sealed.has_keys else None


FORGOTTEN_LATE_MS = 5_000
"""How much later than an erasure a record may be that still names the erased person: the writer did not know of it."""
