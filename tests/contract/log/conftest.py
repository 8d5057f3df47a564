"""Fixtures: an empty log to test, on SQLite and on Kafka."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from services.domain.topics import TOPICS
from services.runtime.log.kafka.log import KafkaLog
from services.runtime.log.port import MAX_WAITING_BYTES, Log
from services.runtime.log.sqlite import SqliteLog
from testkit.kafka.broker import KafkaBroker

PARTITIONS = 4
Connect = Callable[..., Awaitable[KafkaLog]]


class OpenLog(Protocol):
    """Opens the log under test; once it is closed, a second call opens the same log again."""

    async def __call__(self, max_waiting_bytes: int = MAX_WAITING_BYTES) -> Log: ...


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | KafkaBroker:
    """The file or broker in which the log under test stores its records."""
    if request.param == "sqlite":
        return tmp_path / "log.db"
    broker: KafkaBroker = request.getfixturevalue("empty_broker")
    return broker


@pytest.fixture
async def open_log(place: Path | KafkaBroker) -> AsyncIterator[OpenLog]:
    opened: list[Log] = []

    async def open_one(max_waiting_bytes: int = MAX_WAITING_BYTES) -> Log:
        if isinstance(place, KafkaBroker):
            opened.append(
                await KafkaLog.connect(place.bootstrap, TOPICS, PARTITIONS, max_waiting_bytes=max_waiting_bytes)
            )
        else:
            opened.append(SqliteLog(place, TOPICS, max_waiting_bytes=max_waiting_bytes))
        return opened[-1]

    yield open_one
    for log in opened:
        await log.close()


@pytest.fixture
async def log(open_log: OpenLog) -> Log:
    return await open_log()


@pytest.fixture
async def connect(empty_broker: KafkaBroker) -> AsyncIterator[Connect]:
    logs: list[KafkaLog] = []

    async def connect_one(partitions: int = PARTITIONS, timeout_s: float = 30) -> KafkaLog:
        logs.append(await KafkaLog.connect(empty_broker.bootstrap, TOPICS, partitions, timeout_s=timeout_s))
        return logs[-1]

    yield connect_one
    for log in logs:
        await log.close()
