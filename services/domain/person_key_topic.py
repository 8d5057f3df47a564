"""The keys of persons of an installation whose log is in Kafka: the topic `keys`, which each process reads.

The registry writes them, wrapped with a key that is derived from the master key, so that nobody who has the log alone
can use them. A block that lost a key takes the place of the former one under the same record key, and the topic's
settings let Kafka remove that soon. The archive has no compacted topics, and so no keys.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protos.registry.v1.keys_pb2 import KeyFact, WrappedKey
from services.domain.ids import RecordStamp
from services.domain.master_key import (
    OptionalPurpose,
    derive,
    fingerprint_of,
    next_master_file,
    read_keys,
    read_masters,
    stamps_of,
)
from services.domain.person_keys import BLOCKS, KeyStoreError, PersonKeySet
from services.domain.settings import Settings
from services.domain.topics import KEYS, decode
from services.errors import CarillonError, ConflictError
from services.log.port import Log, NewRecord, Partition, Record
from services.process.clock import Clock
from services.process.logs import logger
from services.replica.dead_letters import UNUSABLE, leave_out

KEYS_PARTITION = Partition(KEYS.name, 0)

SEGMENT_AFTER_MS = 900_000
"""The age of a change behind which a record lets Kafka begin a segment: longer than the topic's `segment.ms`."""

_NAMES_KEY = b"names"
_SEGMENT_KEY = b"segment"
_NONCE = 12


class WrappingKeys:
    """The keys that wrap the keys of persons, by fingerprint: one, or two while the master key changes."""

    def __init__(self, read: Callable[[], Sequence[bytes]], paths: Collection[Path] = ()) -> None:
        """`read` returns the keys from their files, which are at `paths`; it is called again for one that is not among
        them yet.
        """
        self._read = read
        self._paths = paths
        self._keys: Mapping[bytes, AESGCM] = {}
        self._read_again()

    @property
    def first(self) -> bytes:
        """The fingerprint of the present key."""
        return next(iter(self._keys))

    @property
    def newest(self) -> bytes:
        """The fingerprint of the next key, or of the present one if there is no other."""
        return list(self._keys)[-1]

    def _read_again(self) -> None:
        self._stamps = stamps_of(self._paths)
        self._keys = {fingerprint_of(key): AESGCM(key) for key in self._read()}

    def has(self, fingerprint: bytes) -> bool:
        """Return whether the process has the key of this fingerprint, or finds it in its file now."""
        if fingerprint not in self._keys:
            self._try_again()
        return fingerprint in self._keys

    def held_fingerprints(self) -> Collection[bytes]:
        """Return the fingerprints of the keys that the process has, or finds in its files now."""
        if self._stamps != stamps_of(self._paths):
            self._try_again()
        return self._keys.keys()

    def _try_again(self) -> None:
        try:
            self._read_again()
        except CarillonError as error:
            logger.error("the key files cannot be read again", error=str(error))

    def wrap(self, by: bytes, content: bytes, record_key: bytes) -> WrappedKey:
        nonce = os.urandom(_NONCE)
        return WrappedKey(by=by, content=nonce + self._keys[by].encrypt(nonce, content, record_key))

    def unwrap(self, wrapped: WrappedKey, record_key: bytes) -> bytes:
        """Return the content. KeyStoreError: the process lacks the key, or the content is damaged."""
        if not self.has(wrapped.by):
            raise KeyStoreError(
                "the keys of persons are wrapped with a key that this process does not have: give it the file that"
                " `carillon keys export --persons-key` writes, in CARILLON_PERSONS_KEY_FILE"
            )
        try:
            return self._keys[wrapped.by].decrypt(wrapped.content[:_NONCE], wrapped.content[_NONCE:], record_key)
        except InvalidTag:
            raise KeyStoreError("a record of the topic keys is damaged") from None


def wrapping_keys(settings: Settings) -> WrappingKeys | None:
    """Return the keys from CARILLON_PERSONS_KEY_FILE or the master key; None: the process has neither file."""
    if settings.persons_key_file is None and not settings.key_file.exists():
        return None

    own, master = settings.persons_key_file, settings.key_file
    paths = [Path(own)] if own is not None else [master, next_master_file(master)]

    def read() -> Sequence[bytes]:
        if settings.persons_key_file is not None:
            return read_keys(Path(settings.persons_key_file), OptionalPurpose.PERSONS)
        return [derive(master, OptionalPurpose.PERSONS) for master in read_masters(settings.key_file)]

    return WrappingKeys(read, paths)


class TopicKeys:
    """The key store on the topic `keys`. `apply` is called with its records; the store is usable once it is complete.

    `replace` is for threads: it waits until the event loop has appended the block. `changed_ms`: the time of the last
    change whose former value Kafka may keep, because no record was appended so long after it; 0 for none.
    """

    def __init__(self, log: Log, clock: Clock, wrapping: WrappingKeys) -> None:
        self._log = log
        self._clock = clock
        self.wrapping = wrapping
        self._stamp = RecordStamp("registry")
        self._stored: dict[bytes, WrappedKey] = {}
        self.changed_ms = 0
        self._loop = asyncio.get_running_loop()
        self.on_complete: Callable[[], None] = lambda: None
        self.on_change: Callable[[int], None] = lambda block: None

    @property
    def is_complete(self) -> bool:
        return len(self._stored) == BLOCKS + 1

    def apply(self, record: Record) -> None:
        try:
            fact = decode(record)
        except UNUSABLE as error:
            leave_out("keys", record, error)
            return
        if record.key == _SEGMENT_KEY and fact.meta.time_ms >= self.changed_ms + SEGMENT_AFTER_MS:
            self.changed_ms = 0
        if fact.WhichOneof("fact") != "wrapped" or not _is_key(record.key):
            return
        self.changed_ms = fact.meta.time_ms
        was_complete = self.is_complete
        self._stored[record.key] = fact.wrapped
        if self.is_complete and not was_complete:
            self.on_complete()
        elif was_complete and record.key != _NAMES_KEY:
            self.on_change(int(record.key, 16))

    def names(self) -> bytes:
        return self._unwrapped(_NAMES_KEY)

    def load(self, block: int) -> bytes:
        return self._unwrapped(_record_key(block))

    def replace(self, block: int, content: bytes) -> None:
        asyncio.run_coroutine_threadsafe(self._replace(_record_key(block), content), self._loop).result()

    async def _replace(self, key: bytes, content: bytes) -> None:
        wrapped = self.wrapping.wrap(self._in_force, content, key)
        await self._log.append([self._record(key, wrapped)])
        self._stored[key] = wrapped

    async def begin_segment(self) -> None:
        """Append a record without a key: the segment with the last change ends, and Kafka may compact it."""
        changed_ms, fact = self.changed_ms, KeyFact()
        self._stamp.complete(fact.meta, self._clock.now_ms())
        await self._log.append([NewRecord(*KEYS_PARTITION, _SEGMENT_KEY, fact.SerializeToString())])
        if self.changed_ms == changed_ms:
            self.changed_ms = 0

    async def fill(self, keys: PersonKeySet) -> None:
        """Append these keys. ConflictError: there are some already."""
        if self.is_complete:
            raise ConflictError("the topic keys has keys of persons already")
        contents = {_record_key(number): content for number, content in enumerate(keys.blocks)}
        contents[_NAMES_KEY] = keys.names
        by = self.wrapping.first
        wrapped = {key: self.wrapping.wrap(by, content, key) for key, content in contents.items()}
        await self._log.append([self._record(key, each) for key, each in wrapped.items()])

    def check_has(self, by: bytes) -> None:
        """Check that this process has the key of this fingerprint, which is to wrap. ConflictError: it has not."""
        if not self.wrapping.has(by):
            raise ConflictError(
                "the registry has not the new key that wraps the keys of persons: give every process the file that"
                " `carillon keys export --persons-key` writes after `carillon keys prepare`, then repeat the command"
            )

    async def wrap_anew(self, by: bytes) -> int:
        """Wrap all keys with the one of this fingerprint; return how many were wrapped with another one.

        That of names comes last, so that a repeated call goes on after a kill.
        """
        self.check_has(by)
        former = [key for key, wrapped in self._stored.items() if wrapped.by != by]
        former.sort(key=lambda key: key == _NAMES_KEY)
        changed = {key: self.wrapping.wrap(by, self._unwrapped(key), key) for key in former}
        await self._log.append([self._record(key, wrapped) for key, wrapped in changed.items()])
        self._stored |= changed
        return len(changed)

    @property
    def is_wrapped_anew(self) -> bool:
        """Whether all keys are wrapped with the newest key that this process has."""
        return all(wrapped.by == self.wrapping.newest for wrapped in self._stored.values())

    @property
    def _in_force(self) -> bytes:
        return self._stored[_NAMES_KEY].by

    def _unwrapped(self, key: bytes) -> bytes:
        wrapped = self._stored.get(key)
        if wrapped is None:
            raise KeyStoreError("the topic keys lacks keys of persons")
        return self.wrapping.unwrap(wrapped, key)

    def _record(self, key: bytes, wrapped: WrappedKey) -> NewRecord:
        fact = KeyFact(wrapped=wrapped)
        self._stamp.complete(fact.meta, self._clock.now_ms())
        return NewRecord(*KEYS_PARTITION, key, fact.SerializeToString())


def _record_key(block: int) -> bytes:
    return f"{block:03x}".encode()


_RECORD_KEYS = frozenset({_NAMES_KEY, *map(_record_key, range(BLOCKS))})


def _is_key(key: bytes) -> bool:
    return key in _RECORD_KEYS
