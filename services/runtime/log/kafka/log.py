"""The event log on Apache Kafka: the only file that knows aiokafka.

Appends go out by group commit, one batch a partition at a time, through an idempotent producer with acks=all. A
producer whose batch failed has used up sequence numbers that the broker never saw, and every later batch of that
partition would be refused; so it is replaced, and the same records are sent again by the next one. They may then be
in the log twice: readers drop repeated event ids.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from ssl import SSLCertVerificationError, SSLError
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    ConsumerStoppedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoError,
    OffsetOutOfRangeError,
    ProducerClosed,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
    for_code,
)

from services.runtime.errors import ConflictError, InputError, UnavailableError
from services.runtime.log.batcher import Batcher, ByteBudget
from services.runtime.log.kafka.security import IN_THE_CLEAR, KafkaSecurity
from services.runtime.log.port import MAX_WAITING_BYTES, NewRecord, Partition, Record, checked_size
from services.runtime.log.topics import Topic, Topics
from services.runtime.process.logs import logger

_BATCH_BYTES = 256 * 1024
_MAX_MESSAGE_BYTES = 1_200_000
_FETCH_BYTES = 2 * 1024 * 1024
_FETCH_WAIT_MS = 100
_RETRY_S = 0.1
_STOP_S = 5.0
_REFUSALS = (
    ClusterAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
"""What waiting does not mend."""

Result = TypeVar("Result")


class KafkaLog:
    """The Log port on a Kafka cluster; made by `connect`."""

    def __init__(
        self,
        bootstrap: str,
        topics: Topics,
        partitions: int,
        security: KafkaSecurity,
        timeout_s: float,
        max_waiting_bytes: int,
    ) -> None:
        self.topics = topics
        self._partitions = partitions
        self._settings = {
            "bootstrap_servers": bootstrap.split(","),
            "request_timeout_ms": int(timeout_s * 1000 / 3),
            **_entry(security),
        }
        self._timeout_s = timeout_s
        self._producers = _Producers(self._settings)
        self._lookup = _consumer(self._settings)
        self._budget = ByteBudget(max_waiting_bytes)
        self._lanes: dict[Partition, Batcher[NewRecord, int]] = {}
        self._readers: set[_KafkaReader] = set()
        self._closed = False

    @classmethod
    async def connect(
        cls,
        bootstrap: str,
        topics: Topics,
        partitions: int = 32,
        replication: int = 1,
        *,
        security: KafkaSecurity = IN_THE_CLEAR,
        timeout_s: float = 30,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> "KafkaLog":
        """Connect to `host:port[,host:port...]` and create the topics that are missing, in `replication` copies.

        `timeout_s` bounds this call, and later each batch and look-up: UnavailableError when the cluster cannot be
        reached for so long. ConflictError: a topic exists with another number of partitions or with settings that
        would lose records, or the cluster refuses a call, or there is no way in with this `security`.
        """
        log = cls(bootstrap, topics, partitions, security, timeout_s, max_waiting_bytes)
        try:
            await log._bounded(log._start(replication))
        except BaseException:
            await log.close()
            raise
        return log

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        self._check_open()
        size = checked_size(new_records, self.topics)
        groups: dict[Partition, list[int]] = {}
        for index, new_record in enumerate(new_records):
            groups.setdefault(Partition(new_record.topic, new_record.partition), []).append(index)
        for topic, number in groups:
            if number >= self.topics[topic].partitions(self._partitions):
                raise InputError(f"the event log has no partition {topic}/{number}")
        self._budget.enter(size)
        if len(groups) == 1:
            return list(await self._batcher(next(iter(groups))).put(new_records, size))
        parts = [[new_records[index] for index in indexes] for indexes in groups.values()]
        lanes = [self._batcher(partition) for partition in groups]
        results = await asyncio.gather(
            *(batcher.put(part, checked_size(part, self.topics)) for batcher, part in zip(lanes, parts, strict=True))
        )
        offsets = dict(zip((i for g in groups.values() for i in g), (o for r in results for o in r), strict=True))
        return [offsets[index] for index in range(len(new_records))]

    async def open(self, starts: Mapping[Partition, int]) -> "_KafkaReader":
        first, ends = await self._bounds(starts)
        for partition, start in starts.items():
            if not first[partition] <= start <= ends[partition]:
                raise ConflictError(
                    f"{partition.topic}/{partition.number} holds offsets {first[partition]} to {ends[partition]}, but"
                    f" {start} was asked for: the state belongs to another log; rebuild it with `carillon replay`"
                )
        reader = _KafkaReader(self._settings, self._timeout_s, dict(starts), self._readers.discard)
        self._readers.add(reader)
        return reader

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        self._check_open()
        wanted = [TopicPartition(*partition) for partition in partitions]
        ends = await self._bounded(self._lookup.end_offsets(wanted))
        return {Partition(*wide): end for wide, end in ends.items()}

    async def last(self, partition: Partition) -> Record | None:
        first, ends = await self._bounds([partition])
        return await self._bounded(self._last(partition, first[partition], ends[partition]))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._lanes:
            await asyncio.wait(
                [asyncio.create_task(batcher.drain()) for batcher in self._lanes.values()], timeout=self._timeout_s
            )
        for reader in list(self._readers):
            await reader.close()
        await self._producers.close()
        await _stopped(self._lookup)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the event log is closed")

    async def _start(self, replication: int) -> None:
        while not await _topics_ready(self._settings, self.topics, self._partitions, replication):
            await asyncio.sleep(_RETRY_S)
        await self._lookup.start()
        _assign(self._lookup, {Partition(topic, 0): 0 for topic in self.topics})
        self._lookup.pause(*self._lookup.assignment())  # assigned to know the topics, paused to fetch nothing
        await self._producers.current()

    async def _bounded(self, call: Coroutine[Any, Any, Result]) -> Result:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except _REFUSALS as error:
            raise ConflictError(f"Kafka refuses what the event log needs: {error}") from error
        except (TimeoutError, KafkaError) as error:
            raise _unavailable(error) from error

    async def _bounds(self, partitions: Iterable[Partition]) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """The first offset and the end of each partition."""
        wanted = list(partitions)
        ends = await self.ends(wanted)
        first = await self._bounded(self._lookup.beginning_offsets([TopicPartition(*p) for p in wanted]))
        return {Partition(*wide): offset for wide, offset in first.items()}, ends

    def _batcher(self, partition: Partition) -> Batcher[NewRecord, int]:
        if partition not in self._lanes:
            self._lanes[partition] = Batcher(lambda new_records: self._ship(partition, new_records), self._budget)
        return self._lanes[partition]

    async def _ship(self, partition: Partition, new_records: list[NewRecord]) -> Sequence[int]:
        """Append the drafts of one partition, a batch after the other, so that order is kept whatever fails."""
        offsets: list[int] = []
        while len(offsets) < len(new_records):
            try:
                async with asyncio.timeout(self._timeout_s):
                    base, count = await self._producers.send(partition, new_records, len(offsets))
            except TimeoutError as error:
                raise _unavailable(error) from error
            offsets += range(base, base + count) if base >= 0 else [-1] * count
        return offsets

    async def _last(self, partition: Partition, first: int, end: int) -> Record | None:
        """Read from ever further before the end: what lies there may be no record but a mark of a transaction."""
        if first == end:
            return None
        consumer = _consumer(self._settings)
        try:
            await consumer.start()
            back, found = 1, None
            while found is None and back < 16 * (end - first):
                _assign(consumer, {partition: max(first, end - back)})
                found = await _last_before(consumer, TopicPartition(*partition), end)
                back *= 16
            return found
        finally:
            await _stopped(consumer)


class _Producers:
    """The producer in use, replaced when it is lost."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def current(self) -> AIOKafkaProducer:
        if self._producer is None:
            async with self._starting:
                if self._closed:
                    raise UnavailableError("the event log is closed")
                if self._producer is None:
                    self._producer = await self._started()
        return self._producer

    async def send(self, partition: Partition, new_records: Sequence[NewRecord], start: int) -> tuple[int, int]:
        """Append as many drafts from `start` on as one batch takes; their first offset, or -1, and their number.

        Tries again, with one producer after the other, until it succeeds or is cancelled.
        """
        while True:
            try:
                producer = await self.current()
                return await self._send_by(producer, partition, new_records, start)
            except KafkaError as error:
                logger.info("append again", topic=partition.topic, partition=partition.number, error=repr(error))
            await asyncio.sleep(_RETRY_S)

    async def _send_by(
        self, producer: AIOKafkaProducer, partition: Partition, new_records: Sequence[NewRecord], start: int
    ) -> tuple[int, int]:
        batch, count = _filled(producer, new_records, start)
        try:
            sent = await producer.send_batch(batch, partition.topic, partition=partition.number)
            return (await sent).offset, count
        except (KafkaTimeoutError, ProducerClosed):  # not sent, or by a producer that was replaced
            raise
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            self.replace(producer)
            raise InputError(f"the topic {partition.topic} takes no batch of this size: {error}") from error
        except KafkaError as error:
            logger.warning(
                "producer lost", topic=partition.topic, partition=partition.number, error=type(error).__name__
            )
            self.replace(producer)
            raise
        except asyncio.CancelledError:
            self.replace(producer, at_once=True)  # or it might send this batch after later ones
            raise

    def replace(self, producer: AIOKafkaProducer, *, at_once: bool = False) -> None:
        """Let the next send start another producer; batches under way may end, unless `at_once`."""
        if producer is self._producer:
            self._producer = None
            task = asyncio.create_task(_ended(producer, 0 if at_once else _STOP_S))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        self._closed = True
        if self._producer:
            self.replace(self._producer)
        if self._ending:
            await asyncio.wait(self._ending)

    async def _started(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._settings, acks="all", enable_idempotence=True, max_batch_size=_BATCH_BYTES, linger_ms=0
        )
        try:
            await producer.start()
        except BaseException:
            await _stopped(producer)
            raise
        return producer


class _KafkaReader:
    """Reads with a consumer of its own, and with another one when that hears nothing from the cluster."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        timeout_s: float,
        positions: dict[Partition, int],
        forget: Callable[["_KafkaReader"], None],
    ) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._positions = positions
        self._forget = forget
        self._consumer: AIOKafkaConsumer | None = None
        self._closed = False

    async def read(self, max_records: int = 5000) -> list[Record]:
        while not self._closed:
            consumer = self._consumer or await self._start()
            heard = _heard(consumer)
            try:
                pages = await consumer.getmany(timeout_ms=int(self._timeout_s * 1000), max_records=max_records)
            except OffsetOutOfRangeError as error:
                raise ConflictError(f"the event log no longer holds what was asked for: {error}") from error
            except ConsumerStoppedError:
                break
            except KafkaError as error:
                await self._drop()
                raise _unavailable(error) from error
            records = [_record(found) for page in pages.values() for found in page]
            if records:
                self._positions |= {Partition(r.topic, r.partition): r.offset + 1 for r in records}
                return records
            if not self._closed and _heard(consumer) == heard:
                await self._drop()
                raise UnavailableError(f"nothing was heard from Kafka for {self._timeout_s:g} s")
        raise UnavailableError("the reader was closed")

    async def close(self) -> None:
        self._closed = True
        self._forget(self)
        await self._drop()

    async def _start(self) -> AIOKafkaConsumer:
        consumer = _consumer(self._settings)
        try:
            async with asyncio.timeout(self._timeout_s):
                await consumer.start()
        except BaseException as error:
            await _stopped(consumer)
            if isinstance(error, TimeoutError | KafkaError):
                raise _unavailable(error) from error
            raise
        self._consumer = consumer
        if self._closed:
            await self._drop()
            raise UnavailableError("the reader was closed")
        _assign(consumer, self._positions)
        return consumer

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer:
            await _stopped(consumer)


async def _topics_ready(settings: Mapping[str, Any], topics: Topics, partitions: int, replication: int) -> bool:
    """Check the topics that exist and create the others; False: look again in a moment."""
    admin = AIOKafkaAdminClient(**settings)
    try:
        await admin.start()
        if (await admin.describe_cluster())["controller_id"] < 0:
            return False
        counts = {t["topic"]: len(t["partitions"]) for t in await admin.describe_topics()}
        _check_counts(counts, topics, partitions)
        missing = [topic for topic in topics.values() if topic.name not in counts]
        if missing:
            await _create(admin, missing, partitions, replication)
        else:
            await _check_settings(admin, topics)
    except (TimeoutError, KafkaConnectionError, KafkaTimeoutError):
        await _check_entry(settings)
        return False
    except KafkaError as error:
        if error.retriable:
            return False
        raise
    finally:
        await admin.close()
    return not missing


def _entry(security: KafkaSecurity) -> dict[str, Any]:
    """What a client is told of how it gets in."""
    login = security.login
    return {
        "security_protocol": security.protocol,
        "ssl_context": security.tls,
        "sasl_mechanism": login.mechanism if login else "PLAIN",
        "sasl_plain_username": login.user if login else None,
        "sasl_plain_password": login.password if login else None,
    }


async def _check_entry(settings: Mapping[str, Any]) -> None:
    """Raise why a server does not let this client in, where waiting does not mend it: aiokafka only logs that."""
    connection = {name: value for name, value in settings.items() if name != "bootstrap_servers"}
    for host, port, _ in collect_hosts(settings["bootstrap_servers"]):
        try:
            (await create_conn(host, port, **connection)).close()
        except SSLCertVerificationError as error:
            raise ConflictError(
                f"the certificate of Kafka at {host}:{port} is not trusted: {error.verify_message}"
            ) from error
        except _REFUSALS:
            raise
        except (OSError, KafkaError) as error:
            if isinstance(error.__cause__, SSLError):
                raise ConflictError(f"Kafka at {host}:{port} ends the connection: {error.__cause__}") from error


def _check_counts(counts: Mapping[str, int], topics: Topics, partitions: int) -> None:
    for topic in topics.values():
        wanted = topic.partitions(partitions)
        if counts.get(topic.name, wanted) != wanted:
            raise ConflictError(
                f"the Kafka topic {topic.name} has {counts[topic.name]} partitions, but {wanted} are configured: their"
                " number can never change, because each device belongs to one of them"
            )


async def _create(admin: AIOKafkaAdminClient, topics: Iterable[Topic], partitions: int, replication: int) -> None:
    response = await admin.create_topics(
        [
            NewTopic(topic.name, topic.partitions(partitions), replication, topic_configs=_topic_settings(topic))
            for topic in topics
        ]
    )
    for name, code, message in response.topic_errors:
        error = for_code(code)
        if error not in (NoError, TopicAlreadyExistsError):
            if error.retriable:
                raise error(message)
            raise ConflictError(f"the Kafka topic {name} cannot be created: {message or error.message}")


def _topic_settings(topic: Topic) -> dict[str, str]:
    kept = {"cleanup.policy": "compact"} if topic.compacted else {"cleanup.policy": "delete", "retention.ms": "-1"}
    return {**kept, "max.message.bytes": str(_MAX_MESSAGE_BYTES)}


async def _check_settings(admin: AIOKafkaAdminClient, topics: Topics) -> None:
    wanted = {topic.name: _topic_settings(topic) for topic in topics.values()}
    asked = [
        ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(settings, "")) for name, settings in wanted.items()
    ]
    for response in await admin.describe_configs(asked):
        for _, _, _, name, found in response.resources:
            for setting, value, *_ in found:
                most = setting == "max.message.bytes" and int(value) >= _MAX_MESSAGE_BYTES
                if not most and value != wanted[name][setting]:
                    raise ConflictError(
                        f"the Kafka topic {name} has {setting}={value}, which would lose records: it needs"
                        f" {wanted[name][setting]}"
                    )


def _filled(producer: AIOKafkaProducer, new_records: Sequence[NewRecord], start: int) -> tuple[Any, int]:
    """A batch with as many drafts from `start` on as it takes, and their number; it takes any first one."""
    batch = producer.create_batch()
    count = 0
    for index in range(start, len(new_records)):
        new_record = new_records[index]
        if batch.append(timestamp=None, key=new_record.key, value=new_record.value) is None:
            break
        count += 1
    return batch, count


async def _ended(producer: AIOKafkaProducer, grace_s: float) -> None:
    """Stop the producer; batches still under way after `grace_s` fail with ProducerClosed."""
    stopping = asyncio.ensure_future(producer.stop())
    await asyncio.wait({stopping}, timeout=grace_s)
    if not stopping.done():
        # aiokafka has no public way to stop without flushing, which never ends when the cluster is away
        producer._sender.sender_task.cancel()
        producer._message_accumulator.fail_all(ProducerClosed())
        await asyncio.wait({stopping}, timeout=_STOP_S)
        stopping.cancel()
        with contextlib.suppress(TimeoutError, KafkaError, OSError):
            await asyncio.wait_for(producer.client.close(), _STOP_S)


async def _stopped(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    with contextlib.suppress(TimeoutError, KafkaError, OSError):
        await asyncio.wait_for(client.stop(), _STOP_S)


def _consumer(settings: Mapping[str, Any]) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **settings,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=_FETCH_WAIT_MS,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )


def _assign(consumer: AIOKafkaConsumer, positions: Mapping[Partition, int]) -> None:
    """Without an await in between: the consumer must not look for positions of its own."""
    consumer.assign([TopicPartition(*partition) for partition in positions])
    for partition, position in positions.items():
        consumer.seek(TopicPartition(*partition), position)


def _heard(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """When each partition was last answered for: unchanged means that the cluster is silent."""
    return {partition: consumer.last_poll_timestamp(partition) for partition in consumer.assignment()}


async def _last_before(consumer: AIOKafkaConsumer, partition: TopicPartition, end: int) -> Record | None:
    found = None
    while await consumer.position(partition) < end:
        for page in (await consumer.getmany(partition, timeout_ms=_FETCH_WAIT_MS)).values():
            found = next((record for record in reversed(page) if record.offset < end), found)
    return _record(found) if found else None


def _record(found: Any) -> Record:
    return Record(found.topic, found.partition, found.offset, found.key or b"", found.value or b"")


def _unavailable(error: BaseException) -> UnavailableError:
    return UnavailableError(f"Kafka cannot be reached: {str(error) or type(error).__name__}")
