"""Roles that start while the log is unavailable wait for it; only permanent errors, and starts that stall, end them."""

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from carillon.roles import ROLES, role_definition
from carillon.up import pages_socket
from services.domain.apps import AppDirectory
from services.domain.master_key import MasterKey
from services.domain.role import RoleContext
from services.domain.role_context import DEFAULT_ADDRESSES, role_context
from services.domain.settings import Settings, load
from services.domain.topics import DEVICES, TOPICS
from services.errors import CarillonError, ConflictError, UnavailableError
from services.log.kafka.log import KafkaLog
from services.log.monitored import MonitoredLog
from services.log.port import DelegatingLog, NewRecord, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.process.clock import ManualClock, SystemClock
from services.process.retries import retry_until_available
from services.process.runner import run
from services.replica.dead_letters import DeadLetters
from services.replica.follower import Follower
from services.replica.peers import Peers
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact
from testkit.kafka.broker import KafkaBroker
from testkit.services import add_servicers
from testkit.waiting import run_ready_tasks

PARTITIONS = 2
BOUND_S = 120
STALLED_S = 0.01
EVERYTHING = [Partition(topic.name, n) for topic in TOPICS.values() for n in range(topic.partitions(PARTITIONS))]


class FailingFirstLog(DelegatingLog):
    """A log in which each method fails when it is first called for the same partitions."""

    def __init__(self, log: SqliteLog) -> None:
        super().__init__(log)
        self._called: set[object] = set()

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        wanted = list(partitions)
        self.fail_first("ends", wanted)
        return await super().ends(wanted)

    async def open(self, starts: Mapping[Partition, int]) -> Reader:
        self.fail_first("open", starts)
        return FailingFirstReader(await super().open(starts), partial(self.fail_first, "read", starts))

    def fail_first(self, method: str, partitions: Iterable[Partition]) -> None:
        call = (method, frozenset(partitions))
        if call not in self._called:
            self._called.add(call)
            raise UnavailableError(f"{method} is not answered")


class FailingFirstReader:
    def __init__(self, reader: Reader, fail_first: "partial[None]") -> None:
        self._reader = reader
        self._fail_first = fail_first

    async def read(self, max_records: int = 5000) -> list[Record]:
        self._fail_first()
        return await self._reader.read(max_records)

    async def close(self) -> None:
        await self._reader.close()


@pytest.mark.parametrize("role", sorted(DEFAULT_ADDRESSES))
async def test_every_role_retries_until_the_log_answers(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.process.retries._FIRST_RETRY_S", 0.001)
    embedded = SqliteLog(tmp_path / "log.db", TOPICS, partitions=PARTITIONS)
    await embedded.append([NewRecord(partition.topic, partition.number, b"k", b"") for partition in EVERYTHING])
    log = FailingFirstLog(embedded)
    servers = {name: LocalServer() for name in ROLES}
    peers = Peers({name: [server.channel()] for name, server in servers.items()}, TOPICS)
    context = RoleContext(log, SystemClock(), peers, MasterKey(bytes(32)), AppDirectory(log))
    env = {"CARILLON_DATA_DIR": str(tmp_path), "CARILLON_PARTITIONS": str(PARTITIONS)}
    definition = role_definition(role)
    built = definition.build(load(definition.settings, env), context)
    add_servicers(built, servers[role])
    ready = asyncio.Event()
    running = asyncio.create_task(run([context.apps, *built.services], on_ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([running, waiting], timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
    assert ready.is_set(), running
    running.cancel()
    await asyncio.wait([running, waiting])
    await log.close()


async def test_the_pauses_grow_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def attempt() -> str:
        if len(pauses) < 10:
            raise UnavailableError("away")
        return "there"

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with capture_logs() as said:
        assert await retry_until_available("no answer", attempt, role="delivery") == "there"
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
    assert {(entry["event"], entry["error"], entry["role"]) for entry in said} == {("no answer", "away", "delivery")}


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the time-out of the Kafka log to one second."""
    monkeypatch.setattr("services.log.kafka.log.KafkaLog.connect", partial(KafkaLog.connect, timeout_s=4))


def settings(broker: KafkaBroker, directory: Path, partitions: int = PARTITIONS) -> Settings:
    return Settings(kafka_bootstrap=broker.bootstrap, data_dir=str(directory), partitions=partitions)


@pytest.mark.kafka
@pytest.mark.usefixtures("short_retries")
@pytest.mark.long
async def test_a_process_that_starts_before_the_broker_waits_for_it(empty_broker: KafkaBroker, tmp_path: Path) -> None:
    await asyncio.to_thread(empty_broker.stop)
    entering = asyncio.create_task(entered(settings(empty_broker, tmp_path)))
    with capture_logs() as said:
        await until_said(said, "the log cannot be reached yet", entering)
    await asyncio.to_thread(empty_broker.start)
    assert await asyncio.wait_for(entering, BOUND_S) == [0]


@pytest.mark.kafka
async def test_a_follower_that_starts_while_the_broker_is_silent_waits_for_it(
    empty_broker: KafkaBroker, tmp_path: Path
) -> None:
    log = await KafkaLog.connect(empty_broker.bootstrap, TOPICS, PARTITIONS, timeout_s=4)
    facts = Partition(DEVICES.name, 0)
    await log.append([NewRecord(*facts, b"k", b"")])
    applied, store = RecordingDecider(), SqliteStore(tmp_path / "state.sqlite", "")
    follower = Follower(
        "recorder", log, applied, store, DeadLetters(tmp_path / "dead-letters", "recorder"), applies=[facts]
    )
    ready = asyncio.Event()
    empty_broker.pause()
    try:
        running = asyncio.create_task(follower.run(ready))
        with capture_logs() as said:
            await until_said(said, "the log does not answer", running)
    finally:
        empty_broker.resume()
    await asyncio.wait_for(ready.wait(), BOUND_S)
    assert [record.offset for record in applied.records] == [0]
    running.cancel()
    await asyncio.wait([running])
    await log.close()


@pytest.mark.kafka
async def test_a_permanent_error_ends_the_start(empty_broker: KafkaBroker, tmp_path: Path) -> None:
    assert await entered(settings(empty_broker, tmp_path)) == [0]
    with pytest.raises(ConflictError, match="has 2 partitions, but 3 are configured"):
        await entered(settings(empty_broker, tmp_path, partitions=3))


class RecordingDecider:
    """A decider that records the facts applied."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def apply(self, record: Record, message: object) -> None:
        self.records.append(record)

    def decide(self, record: Record, message: object) -> Sequence[Fact]:
        return ()


async def entered(settings: Settings) -> list[int]:
    """Append a record as soon as the role context is there; return its offset."""
    async with role_context(settings, Peers({}, TOPICS), key_purposes=()) as context:
        return await context.log.append([NewRecord(DEVICES.name, 0, b"k", b"")])


async def until_said(said: Sequence[Mapping[str, object]], event: str, running: "asyncio.Task[object]") -> None:
    """Return once the event was logged; the task must go on meanwhile."""
    async with asyncio.timeout(BOUND_S):
        while not any(entry["event"] == event for entry in said):
            assert not running.done(), running
            await asyncio.sleep(0.01)


class CatchingUp:
    """A service that is ready once it has caught up with a log; each request for its progress finds one more record
    read, until the log has no more.
    """

    name = "catching up"

    def __init__(self, records: int, needed: int) -> None:
        self.read = 0
        self._records = records
        self._needed = needed
        self._caught_up = asyncio.Event()

    def progress(self) -> int:
        self.read = min(self.read + 1, self._records)
        if self.read >= self._needed:
            self._caught_up.set()
        return self.read

    async def run(self, ready: asyncio.Event) -> None:
        await self._caught_up.wait()
        ready.set()
        await asyncio.Event().wait()


async def test_a_start_may_take_any_time_while_there_is_progress() -> None:
    service, started, stopping = CatchingUp(records=5, needed=5), asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(run([service], started.set, STALLED_S, progress=service.progress, stopping=stopping))
    await asyncio.wait_for(started.wait(), BOUND_S)
    stopping.set()
    await asyncio.wait_for(running, BOUND_S)
    assert service.read == 5


async def test_a_start_without_progress_is_a_failure() -> None:
    service = CatchingUp(records=3, needed=4)
    with pytest.raises(CarillonError, match=r"^catching up is not ready, and made no progress for 0 s; "):
        await asyncio.wait_for(run([service], lambda: None, STALLED_S, progress=service.progress), BOUND_S)
    assert service.read == 3


async def test_progress_is_what_was_read_of_the_log(tmp_path: Path) -> None:
    log = MonitoredLog(SqliteLog(tmp_path / "events.db", TOPICS), SystemClock())
    partition = Partition(DEVICES.name, 0)
    await log.append([NewRecord(*partition, key, b"value") for key in (b"a", b"b", b"c")])
    reader = await log.open({partition: 0})
    read = len(await reader.read(2)) + len(await reader.read(2))
    assert log.records_read == read == 3
    await reader.close()
    await log.close()


async def test_a_start_waits_a_moment_for_the_port_that_a_former_console_still_has() -> None:
    clock = ManualClock(0)
    with socket.create_server(("127.0.0.1", 0)) as former:
        settings = Settings(host="127.0.0.1", console_port=former.getsockname()[1])
        refused = asyncio.create_task(pages_socket(settings, clock))
        for _ in range(25):
            assert not refused.done()
            await run_ready_tasks()
            clock.move(0.2)
        with pytest.raises(ConflictError, match="Address already in use"):
            await refused
        starting = asyncio.create_task(pages_socket(settings, clock))
        await run_ready_tasks()
        assert not starting.done()
    clock.move(0.2)
    with await starting as opened:
        assert opened.getsockname()[1] == settings.console_port
