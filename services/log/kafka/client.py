"""Settings, errors and the life of clients of the Kafka cluster, and consumers without a group."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

from services.errors import PermissionDeniedError, UnavailableError
from services.log.kafka.security import KafkaSecurity
from services.log.port import Partition, Record
from services.process import background

RETRY_S = 0.1
STOP_S = 5.0
FETCH_WAIT_MS = 500
"""How long a broker holds the answer to a reader that has read everything. A new record is answered at once. A refresh
of the metadata waits for as long, because a broker takes one request of a connection at a time."""

_FETCH_BYTES = 2 * 1024 * 1024

REFUSALS = (
    ClusterAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
"""Errors that stay however often the call is repeated."""

NOT_AUTHORIZED = (ClusterAuthorizationFailedError, TopicAuthorizationFailedError)
"""Errors of a user who lacks a right."""

ClientSettings = Mapping[str, Any]


def client_settings(bootstrap: str, security: KafkaSecurity, timeout_s: float) -> ClientSettings:
    """Return the arguments that every aiokafka client is made with; a request may take a third of the time-out."""
    login = security.login
    return {
        "bootstrap_servers": bootstrap.split(","),
        "request_timeout_ms": int(timeout_s * 1000 / 3),
        "security_protocol": security.protocol,
        "ssl_context": security.tls,
        "sasl_mechanism": login.mechanism if login else "PLAIN",
        "sasl_plain_username": login.user if login else None,
        "sasl_plain_password": login.password if login else None,
    }


def new_consumer(settings: ClientSettings, fetch_wait_ms: int = FETCH_WAIT_MS) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **settings,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=min(fetch_wait_ms, settings["request_timeout_ms"] // 2),
        max_partition_fetch_bytes=_FETCH_BYTES,
    )


def assign(consumer: AIOKafkaConsumer, positions: Mapping[Partition, int]) -> None:
    """Assign the partitions and seek, without an await in between: the consumer must not look up positions itself."""
    consumer.assign([TopicPartition(*partition) for partition in positions])
    for partition, position in positions.items():
        consumer.seek(TopicPartition(*partition), position)


async def stop(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """Stop the client within STOP_S, whether or not the cluster answers.

    A client whose connections are refused cancels tasks of its own, and its stop raises their CancelledError. That
    error is ignored like others, unless the caller is being cancelled.
    """
    try:
        async with asyncio.timeout(STOP_S):
            await client.stop()
    except (TimeoutError, KafkaError, OSError):
        return
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise


def to_record(fetched: Any) -> Record:
    return Record(fetched.topic, fetched.partition, fetched.offset, fetched.key or b"", fetched.value or b"")


def unavailable(error: BaseException, settings: ClientSettings) -> UnavailableError:
    """Return the error of a call that Kafka has not answered. It names the addresses and the setting that has them."""
    addresses, reason = ",".join(settings["bootstrap_servers"]), str(error) or type(error).__name__
    return UnavailableError(f"Kafka cannot be reached at CARILLON_KAFKA_BOOTSTRAP={addresses}: {reason}")


def not_allowed(action: str, topic: str, settings: ClientSettings) -> PermissionDeniedError:
    """Return the error of a call that the brokers refuse this user. `action`: "append to" or "read"."""
    user = settings["sasl_plain_username"] or "of this process"
    return PermissionDeniedError(
        f"Kafka does not let the user {user} {action} the topic {topic}. `carillon acls` prints the rights of each role"
    )


# A client of Kafka that is started when it is needed, and replaced by another one once it has failed.

Client = TypeVar("Client")
Stop = Callable[[Client], Coroutine[Any, Any, None]]


class Replaceable(Generic[Client]):
    """One client at a time. `start` makes and starts one, `stop` ends one within a bounded time and raises nothing."""

    def __init__(self, start: Callable[[], Awaitable[Client]], stop: Stop[Client]) -> None:
        self._start = start
        self._stop = stop
        self._client: Client | None = None
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def current(self) -> Client:
        """Return the client that calls use now. Raises the errors of `start`; UnavailableError: `close` was called."""
        if self._client is None:
            async with self._starting:
                if self._closed:
                    raise UnavailableError("the event log is closed")
                if self._client is None:
                    self._client = await self._start()
        return self._client

    def replace(self, client: Client, stop: Stop[Client] | None = None) -> None:
        """Stop this client, by `stop` if given, and let the next call start another; once replaced, do nothing."""
        if client is self._client:
            self._client = None
            task = background.start("stop of a Kafka client", (stop or self._stop)(client))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Stop the client, and wait for those that were replaced."""
        self._closed = True
        if self._client is not None:
            self.replace(self._client)
        if self._ending:
            await asyncio.wait(self._ending)
