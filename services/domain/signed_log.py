"""The log with signed topics: their owner signs each record that it appends, and every reader checks the signature.

A process that may append to such a topic, or an attacker in its place, still cannot write what only the owner may: the
registry signs `apps`, `keys` and `erasures`; the role accounts signs `accounts`, `log-ins` and `drafts`.

A signed record is the record as its writer made it, with some bytes behind it: an envelope that has a meta with nothing
but a sequence number and the signature. Readers that know of no signatures merge it with the envelope before it, as
protobuf does with all parts of a message. The signature is over topic, key and all bytes before it, so no reader
serialises anything again, and a record cannot be moved under another key.

In a compacted topic a forged record may displace the valid one of its key. So the registry, which follows `apps` all
the time, writes the valid record again behind it, as it does behind a record of a former owner.

A record that is appended once more unchanged has a valid signature too. Facts about accounts have versions, and what is
used once stays used; the app directory accepts a key's record only if (epoch, sequence) is higher than in the last one.
"""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protos.registry.v1.apps_pb2 import AppFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import ACCOUNTS, APPS, DRAFTS, ERASURES, KEYS, LOG_INS
from services.log.port import DelegatingLog, Log, NewRecord, Partition, Reader, Record
from services.replica.catch_up import read_until

OWNERS: Mapping[str, str] = {
    APPS.name: "registry",
    ERASURES.name: "registry",
    KEYS.name: "registry",
    ACCOUNTS.name: "accounts",
    LOG_INS.name: "accounts",
    DRAFTS.name: "accounts",
}
"""The role that signs the records of a topic. All of these topics have one partition."""

_SIGNATURE = 64
_CONTEXT = b"carillon record 1\0"
_BATCH = 500
"""Upper bound of the records of signed topics read at once: checking them blocks the event loop for 50 ms."""


class UnsignedRecordError(ValueError):
    """The record is not signed by the owner of its topic."""


class SignedLog(DelegatingLog):
    """Signs records appended to topics whose private key it has; checks records of topics whose public keys it has.

    A record that fails the check is read as an empty one, which changes nothing, and handed to `refuse`. Records before
    the first signed one of their topic pass: an older version wrote them, and no reader had a key.
    """

    def __init__(
        self,
        log: Log,
        private: Mapping[str, Ed25519PrivateKey],
        public: Mapping[str, Sequence[Ed25519PublicKey]],
        refuse: Callable[[Record, Exception], None],
    ) -> None:
        """`private` and `public`: the keys by owner; a signature by any of the public keys is valid."""
        super().__init__(log)
        self._private = private
        self._public = public
        self._refuse = refuse
        self._sequence = itertools.count(1)
        self._first: dict[str, int] = {}
        self._unsigned_until: dict[str, int] = {}

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        return await self._log.append([self._signed(each) for each in new_records])

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        for partition, start in starts.items():
            if self._checks(partition.topic):
                await self._look_for_signature(partition, start)
        reader = await self._log.open(starts)
        return _CheckingReader(reader, self.checked) if any(self._checks(p.topic) for p in starts) else reader

    async def last(self, partition: Partition) -> Record | None:
        record = await self._log.last(partition)
        if record is None or not self._checks(partition.topic):
            return record
        await self._look_for_signature(partition, record.offset)
        return self.checked(record)

    def checked(self, record: Record) -> Record:
        """Return the record; with an empty value where its signature is wrong, or is missing behind the first signed
        record of its topic.
        """
        if not self._checks(record.topic):
            return record
        try:
            is_missing = not self._has_valid_signature(record) and self._is_behind_first(record)
            error = UnsignedRecordError(f"it is not signed by the role {OWNERS[record.topic]}") if is_missing else None
        except UnsignedRecordError as wrong:
            error = wrong
        if error is None:
            return record
        self._refuse(record, error)
        return record._replace(value=b"")

    def _is_behind_first(self, record: Record) -> bool:
        return record.offset >= self._first.get(record.topic, sys.maxsize)

    def _checks(self, topic: str) -> bool:
        return bool(self._public.get(OWNERS.get(topic, "")))

    def _signed(self, new_record: NewRecord) -> NewRecord:
        key = self._private.get(OWNERS.get(new_record.topic, ""))
        if key is None:
            return new_record
        value = new_record.value + AppFact(meta=Meta(sequence=next(self._sequence))).SerializeToString()
        signature = key.sign(_signed_bytes(new_record.topic, new_record.key, value))
        return new_record._replace(value=value + _trailer(signature))

    def _has_valid_signature(self, record: Record) -> bool:
        """Return whether the record is signed; note where its topic's signatures begin.

        UnsignedRecordError: it has a signature, which is not its owner's.
        """
        if not _is_signed(record):
            return False
        value, signature = record.value[:-_TRAILER], record.value[-_SIGNATURE:]
        content = _signed_bytes(record.topic, record.key, value)
        for key in self._public[OWNERS[record.topic]]:
            try:
                key.verify(signature, content)
            except InvalidSignature:
                continue
            self._first[record.topic] = min(record.offset, self._first.get(record.topic, record.offset))
            return True
        raise UnsignedRecordError(f"the signature is not one of the role {OWNERS[record.topic]}, or not of this record")

    async def _look_for_signature(self, partition: Partition, end: int) -> None:
        """Find the topic's first signed record, if it lies before this offset: what follows it must be signed."""
        topic = partition.topic
        if topic in self._first or self._unsigned_until.get(topic, 0) >= end:
            return
        begin = (await self._log.begins([partition]))[partition]
        starts = {partition: max(begin, self._unsigned_until.get(topic, 0))}
        async with aclosing(read_until("signatures", self._log, starts, {partition: end})) as batches:
            async for records, offsets in batches:
                for record in records:
                    with suppress(UnsignedRecordError):  # whoever reads the record refuses it
                        if self._has_valid_signature(record):
                            return
                self._unsigned_until[topic] = offsets[partition]


class _CheckingReader:
    """A reader that checks the records which another one returns."""

    def __init__(self, reader: Reader, checked: Callable[[Record], Record]) -> None:
        self._reader = reader
        self._checked = checked

    async def read(self, max_records: int = 5000) -> list[Record]:
        return [self._checked(record) for record in await self._reader.read(min(max_records, _BATCH))]

    async def close(self) -> None:
        await self._reader.close()


def _signed_bytes(topic: str, key: bytes, value: bytes) -> bytes:
    """Return the bytes that a signature is over: no other topic, key and value give the same."""
    name = topic.encode()
    return b"".join((_CONTEXT, len(name).to_bytes(4, "big"), name, len(key).to_bytes(4, "big"), key, value))


def _is_signed(record: Record) -> bool:
    """Return whether the record ends with a signature, valid or not."""
    return len(record.value) > _TRAILER and record.value[-_TRAILER:-_SIGNATURE] == _SIGNATURE_FIELDS


def _trailer(signature: bytes) -> bytes:
    """Return the end of a signed record: an envelope with the signature alone."""
    return _SIGNATURE_FIELDS + signature


_SIGNATURE_FIELDS = AppFact(meta=Meta(signature=bytes(_SIGNATURE))).SerializeToString()[:-_SIGNATURE]
_TRAILER = len(_SIGNATURE_FIELDS) + _SIGNATURE


async def holds_signed(log: Log, role: str) -> bool:
    """Return whether a topic of the role holds a record with a signature, which need not be a valid one."""
    for topic in (topic for topic, owner in OWNERS.items() if owner == role):
        partition = Partition(topic, 0)
        begin, end = (await log.begins([partition]))[partition], (await log.ends([partition]))[partition]
        async with aclosing(read_until("signatures", log, {partition: begin}, {partition: end})) as batches:
            async for records, _ in batches:
                if any(map(_is_signed, records)):
                    return True
    return False
