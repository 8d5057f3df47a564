"""Fixtures: an empty log of each kind: SQLite, SQLite read by another process, a child's, sealed, simulated, Kafka."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Protocol

import pytest

from carillon.children.parent import Announcements, ParentLog, ParentServicer
from protos.runtime.v1.parent_pb2_grpc import add_ParentServiceServicer_to_server
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.topics import TOPICS
from services.log.kafka.log import KafkaLog
from services.log.port import MAX_WAITING_BYTES, DelegatingLog, Log, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from testkit.kafka.broker import KafkaBroker
from testkit.persons import key_ring
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.log.client import SimulatedLog

PARTITIONS = 4
Connect = Callable[..., Awaitable[KafkaLog]]


class OpenLog(Protocol):
    """Opens the log under test; once it is closed, a second call opens the same log again."""

    async def __call__(self, max_waiting_bytes: int = MAX_WAITING_BYTES) -> Log: ...


class LogBeside(DelegatingLog):
    """One SQLite file in two processes: one has it open for appending, the other one for reading."""

    def __init__(self, path: Path, max_waiting_bytes: int) -> None:
        super().__init__(SqliteLog(path, TOPICS, max_waiting_bytes=max_waiting_bytes))
        self._reads = SqliteLog(path, TOPICS, read_only=True, poll_s=0.005)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        return await self._reads.open(starts)

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._reads.ends(partitions)

    async def last(self, partition: Partition) -> Record | None:
        return await self._reads.last(partition)

    async def close(self) -> None:
        await self._reads.close()
        await super().close()


class LogAndParent(ParentLog):
    """The log of a child, together with the parent that appends its records."""

    def __init__(self, path: Path, max_waiting_bytes: int) -> None:
        self._parents = SqliteLog(path, TOPICS, max_waiting_bytes=max_waiting_bytes)
        server = LocalServer()
        servicer = ParentServicer(self._parents, Announcements(), no_operations)
        add_ParentServiceServicer_to_server(servicer, server)  # type: ignore[arg-type]
        super().__init__(SqliteLog(path, TOPICS, read_only=True, poll_s=0.005), server.channel())

    async def close(self) -> None:
        await super().close()
        await self._parents.close()


async def no_operations(path: str) -> tuple[int, str, bytes]:
    return 404, "text/plain", b""


@pytest.fixture(
    params=[
        "sqlite",
        "sqlite beside",
        "of a parent",
        "sealed",
        "simulated",
        pytest.param("kafka", marks=pytest.mark.kafka),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | Broker | KafkaBroker:
    """The file or broker in which the log under test stores its records."""
    if request.param == "simulated":
        return Broker(TOPICS, PARTITIONS, Behaviour(Random(1), typical_s=0))
    if request.param != "kafka":
        return tmp_path / "log.db"
    broker: KafkaBroker = request.getfixturevalue("empty_broker")
    return broker


@pytest.fixture
async def open_log(request: pytest.FixtureRequest, place: Path | Broker | KafkaBroker) -> AsyncIterator[OpenLog]:
    opened: list[Log] = []

    async def open_one(max_waiting_bytes: int = MAX_WAITING_BYTES) -> Log:
        if isinstance(place, KafkaBroker):
            opened.append(
                await KafkaLog.connect(place.bootstrap, TOPICS, PARTITIONS, max_waiting_bytes=max_waiting_bytes)
            )
        elif isinstance(place, Broker):
            opened.append(SimulatedLog(place, max_waiting_bytes=max_waiting_bytes))
        elif request.node.callspec.params["place"] == "sqlite beside":
            opened.append(LogBeside(place, max_waiting_bytes))
        elif request.node.callspec.params["place"] == "of a parent":
            opened.append(LogAndParent(place, max_waiting_bytes))
        elif request.node.callspec.params["place"] == "sealed":
            stored = SqliteLog(place, TOPICS, max_waiting_bytes=max_waiting_bytes)
            opened.append(SealedLog(stored, Sealer(key_ring(place.with_name("persons"))), seals=True))
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
