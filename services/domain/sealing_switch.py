"""Which keys of persons a process has, and from when on it seals personal values: once `apps` says so.

With the embedded log the keys are files beside it (KeyFiles), which the first `carillon up` makes; its children read
them. With Kafka they are in the topic `keys` (TopicKeys), which the registry fills on `carillon keys seal`. They are
there before any process seals, so that all processes can open what one has sealed.

An installation begins with `carillon keys seal`, and there is no way back: from then on a process without these keys
does not start, because it would take names for tokens.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from protos.registry.v1.apps_pb2 import AppFact, Sealing
from services.domain.apps import AppDirectory
from services.domain.person_key_topic import KEYS_PARTITION, TopicKeys, WrappingKeys, wrapping_keys
from services.domain.person_keys import KeyFiles, KeyRing, KeyStore, PersonKeySet
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.settings import Settings
from services.errors import CarillonError
from services.log.port import Log
from services.process import background
from services.process.clock import Clock, SystemClock
from services.process.logs import logger
from services.process.metrics import PERSON_KEYS, PERSON_KEYS_UNCOPIED
from services.replica.catch_up import read_until
from services.replica.partition_reader import PartitionReader

_WARN_MS = 86_400_000


def person_keys_directory(settings: Settings) -> Path:
    """Return where the keys of persons are beside an embedded log: not in the directory of the log."""
    return settings.data / "keys" / "persons"


class PersonKeys:
    """The keys of persons of this process. `ring` is None until they are there."""

    def __init__(self, log: SealedLog, apps: AppDirectory, clock: Clock, topic: TopicKeys | None = None) -> None:
        self.ring: KeyRing | None = None
        self.topic = topic
        self.log = log
        self._apps = apps
        self._clock = clock
        self._used = asyncio.Event()
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        apps.on_sealing(self._seal)

    def use(self, store: KeyStore) -> None:
        """Open what is read from now on with the keys of this store, and seal if the installation does."""
        self.ring = KeyRing(store)
        self.log.use(Sealer(self.ring))
        PERSON_KEYS.set(1)
        self._used.set()
        self._seal()

    async def make(self) -> KeyRing | None:
        """Return the keys, which are made in the topic if there are none; None: this process cannot make them."""
        if self.ring is None and self.topic is not None:
            await self.topic.fill(PersonKeySet.new())
            await self._used.wait()
        return self.ring

    def check(self) -> None:
        """Seal if the installation does. CarillonError: it does, and the process has not its keys."""
        self._seal()
        if self._lost.done():
            raise CarillonError(self._lost.result())
        if self._apps.sealing.since_ms and self.ring is None:
            raise CarillonError(_MISSING)

    async def until_lost(self) -> None:
        """Wait until the installation seals and this process cannot; then CarillonError."""
        raise CarillonError(await self._lost)

    def _seal(self) -> None:
        sealing = self._apps.sealing
        if not sealing.since_ms:
            return
        if self.ring is not None and self.ring.fingerprint == sealing.fingerprint:
            self.log.seal()
            return
        self.log.stop()  # until the keys are read from the topic, if that is where they are
        if (self.ring is not None or self.topic is None) and not self._lost.done():
            self._lost.set_result(_MISSING if self.ring is None else _FOREIGN)

    async def warn(self) -> None:
        """Say once a day that the keys were never copied, while they are in use."""
        while True:
            is_uncopied = bool(self._apps.sealing.since_ms and not self._apps.sealing.copied_ms)
            PERSON_KEYS_UNCOPIED.set(is_uncopied)
            if is_uncopied:
                logger.warning(
                    "no copy of the keys of persons was made: with them, tokens and aliases in the log would be lost",
                    fix="carillon keys backup FILE",
                )
            await self._clock.sleep_until(self._clock.now_ms() + _WARN_MS)


_MISSING = (
    "this installation seals personal values in its log, and this process has not the keys of persons: put a copy of"
    " them in place with `carillon keys restore FILE`; with Kafka, set CARILLON_PERSONS_KEY_FILE to what `carillon keys"
    " export --persons-key` writes (docs/operators/keys.md)"
)
_FOREIGN = (
    "the keys of persons are not those with which this installation seals: put its own in place with `carillon keys"
    " restore FILE` (docs/operators/keys.md)"
)


@asynccontextmanager
async def person_keys(
    settings: Settings, log: SealedLog, apps: AppDirectory, clock: Clock, *, owns: bool
) -> AsyncIterator[PersonKeys]:
    """Yield the keys of persons of this process, with which its log opens and seals; follow them until the exit.

    `owns`: the process makes the keys of an embedded log, and destroys them; others read them. CarillonError: the
    installation seals, and its keys are not here.
    """
    tasks: list[asyncio.Task[None]] = []
    wrapping = wrapping_keys(settings) if settings.kafka_bootstrap else None
    topic = TopicKeys(log, clock, wrapping) if wrapping else None
    keys = PersonKeys(log, apps, clock, topic)
    try:
        if topic is not None:
            tasks.append(await _follow(topic, keys))
        elif settings.kafka_bootstrap is None:
            directory = person_keys_directory(settings)
            if owns and not directory.exists() and not apps.sealing.since_ms:
                KeyFiles.create(directory)
            if directory.exists():
                keys.use(KeyFiles(directory, read_only=not owns))
        keys.check()
        tasks.append(background.start_endless("keys of persons", keys.until_lost()))
        if owns:
            tasks.append(background.start_endless("copy of the keys of persons", keys.warn()))
        yield keys
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _follow(topic: TopicKeys, keys: PersonKeys) -> "asyncio.Task[None]":
    """Read the topic `keys`, use the keys once they are complete, and follow it; return the task that does so."""

    def changed(block: int) -> None:
        if keys.ring is not None:
            keys.ring.reload(block)

    topic.on_complete = lambda: keys.use(topic)
    topic.on_change = changed
    reader = PartitionReader("keys", keys.log, KEYS_PARTITION, topic.apply)
    following = background.start_endless("the topic keys", reader.run(caught_up := asyncio.Event()))
    waiting = asyncio.create_task(caught_up.wait())
    await asyncio.wait([waiting, following], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if following.done():
        following.result()
    return following


async def stored_person_keys(settings: Settings, log: Log | None) -> KeyStore | None:
    """Return the keys of persons as they are stored now, for a process that only reads; None: there are none for it.

    `log` is needed with Kafka alone.
    """
    if settings.kafka_bootstrap is None or log is None:
        directory = person_keys_directory(settings)
        return KeyFiles(directory, read_only=True) if directory.exists() else None
    if (wrapping := wrapping_keys(settings)) is None:
        return None
    topic = await _read_topic(log, wrapping)
    return topic if topic.is_complete else None


async def fill_topic(settings: Settings, log: Log, keys: PersonKeySet) -> None:
    """Put keys of persons into the topic. CarillonError: it has some, or this process has no key to wrap them with."""
    if (wrapping := wrapping_keys(settings)) is None:
        raise CarillonError("this command needs the master key, or CARILLON_PERSONS_KEY_FILE")
    await (await _read_topic(log, wrapping)).fill(keys)


async def _read_topic(log: Log, wrapping: WrappingKeys) -> TopicKeys:
    topic = TopicKeys(log, SystemClock(), wrapping)
    ends = await log.ends([KEYS_PARTITION])
    starts = await log.begins([KEYS_PARTITION])
    async with aclosing(read_until("keys", log, starts, ends)) as batches:
        async for records, _ in batches:
            for record in records:
                topic.apply(record)
    return topic


def sealing_fact(since_ms: int, fingerprint: bytes) -> AppFact:
    """Return the fact that the installation seals from then on; its record key is SEALING_KEY."""
    return AppFact(sealing=Sealing(since_ms=since_ms, fingerprint=fingerprint))
