"""The simulated machines: calls over the network, disks after crashes, and a log that fails."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

import pytest

from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse, Position
from protos.runtime.v1.log_pb2_grpc import (
    PositionsServiceServicer,
    PositionsServiceStub,
    add_PositionsServiceServicer_to_server,
)
from services.domain.topics import SESSIONS, TOPICS
from services.errors import ConflictError, DeadlineError, NotFoundError, UnavailableError
from services.log.port import NewRecord, Partition, Record
from services.net.rpc.server import Server as GrpcServer
from services.replica.sqlite_store import SqliteStore
from tests.simulation.kernel.disk import Disk
from tests.simulation.kernel.log.behaviour import Behaviour
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.log.client import TIMEOUT_S, SimulatedLog
from tests.simulation.kernel.network.channels import Network, Server
from tests.simulation.kernel.process import Process
from tests.simulation.kernel.world import World

P0 = Partition(SESSIONS.name, 0)
PART = Partition("offsets", 0)


class Positions(PositionsServiceServicer):
    """Answers with the positions that it is given, after the seconds that the first of them names as its offset."""

    def __init__(self) -> None:
        self.seen: list[AwaitRequest] = []
        self.ended: list[str] = []

    async def Await(self, request: AwaitRequest, context: Any) -> AwaitResponse:
        self.seen.append(request)
        try:
            await asyncio.sleep(request.positions[0].offset)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        if request.positions[0].topic == "none":
            raise NotFoundError("no such topic")
        return AwaitResponse(produced=request.positions)


def served(network: Network, name: str, servicer: Positions) -> Process:
    """Let a process of this name answer calls."""
    process = network.world.process(name)
    server = Server(process)
    add_PositionsServiceServicer_to_server(servicer, cast(GrpcServer, server))
    network.listen(server)
    return process


def waiting(seconds: int, topic: str = "topic") -> AwaitRequest:
    return AwaitRequest(positions=[Position(topic=topic, offset=seconds)])


def test_calls_between_processes(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        network, servicer = Network(world, lambda: 0.01), Positions()
        process, stub = served(network, "server", servicer), PositionsServiceStub(network.channel("server"))
        request = waiting(1)
        answer = await stub.Await(request)
        assert list(answer.produced) == list(request.positions)
        assert servicer.seen[0] is not request

        with pytest.raises(NotFoundError, match="no such topic"):
            await stub.Await(waiting(0, "none"))
        with pytest.raises(UnavailableError):
            await PositionsServiceStub(network.channel("nobody")).Await(request)

        with pytest.raises(DeadlineError):
            await stub.Await(waiting(5), timeout=2)
        await asyncio.sleep(1)
        assert servicer.ended == ["cancelled"]

        network.block("world", "server", 3)
        begun_s = world.loop.time()
        await stub.Await(waiting(0))
        assert 3 < world.loop.time() - begun_s < 3.1

        call = asyncio.ensure_future(stub.Await(waiting(5)))
        await asyncio.sleep(1)
        process.kill()
        with pytest.raises(UnavailableError):
            await call
        with pytest.raises(UnavailableError):
            await stub.Await(request)
        served(network, "server", servicer)
        await stub.Await(request)

    World(1, tmp_path).run(scenario)


def test_a_handler_is_cancelled_when_its_caller_dies_or_the_connection_breaks(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        network, servicer = Network(world, lambda: 0.01), Positions()
        served(network, "server", servicer)
        stub = PositionsServiceStub(network.channel("server"))

        async def ask() -> None:
            await stub.Await(waiting(5))

        caller = world.process("caller")
        caller.start(ask())
        await asyncio.sleep(1)
        caller.kill()
        assert servicer.ended == []
        await asyncio.sleep(0.1)
        assert servicer.ended == ["cancelled"]

        with patch.object(network, "reset_after_s", return_value=1.0), pytest.raises(UnavailableError, match="lost"):
            await stub.Await(waiting(5))
        await asyncio.sleep(0.1)
        assert servicer.ended == ["cancelled"] * 2

    World(1, tmp_path).run(scenario)


class Echo:
    """A servicer with one stream, as LocalServer's channels call it: answers each request with itself."""

    def __init__(self) -> None:
        self.ended = 0

    async def stream_stream(self, requests: AsyncIterator[Position], context: None) -> AsyncIterator[Position]:
        try:
            async for request in requests:
                yield request
        finally:
            self.ended += 1


def test_streams_keep_their_order_and_end_on_both_sides(tmp_path: Path) -> None:
    async def numbers(count: int, pause_s: float = 0) -> AsyncIterator[Position]:
        for number in range(count):
            yield Position(offset=number)
            if pause_s:
                await asyncio.sleep(pause_s)
        if count > 50:
            await asyncio.Event().wait()

    async def scenario(world: World) -> None:
        network, echo, random = Network(world, lambda: random.uniform(0, 0.1)), Echo(), world.random("delays")
        process = world.process("server")
        server = Server(process)
        server.add_registered_method_handlers("s", {"Echo": echo})
        network.listen(server)
        stream: Any = network.channel("server").stream_stream("/s/Echo")
        assert [answer.offset async for answer in stream(numbers(50))] == list(range(50))
        assert echo.ended == 1

        async for answer in stream(numbers(60)):
            if answer.offset == 59:
                break
        await asyncio.sleep(1)
        assert echo.ended == 2

        network.block("server", "world", 60)
        with pytest.raises(UnavailableError):
            async for _ in stream(numbers(60)):
                assert world.loop.time() < 60
        await asyncio.sleep(60)
        assert echo.ended == 3

        answers = []
        with pytest.raises(UnavailableError):
            async for answer in stream(numbers(60, pause_s=1)):
                answers.append(answer)
                network.reset_rate = 1.0
        assert 0 < len(answers) < 60
        network.reset_rate = 0.0

        with pytest.raises(UnavailableError):
            async for answer in stream(numbers(60)):
                if answer.offset == 30:
                    process.kill()

    World(1, tmp_path).run(scenario)


def committed(store: SqliteStore, count: int) -> None:
    """Commit so many transactions, the last with the offset `count`."""
    for number in range(1, count + 1):
        store.begin()
        store.rows.execute("INSERT INTO rows VALUES (?)", (number,))
        store.commit({PART: number})


def test_a_kill_loses_no_commit_and_a_power_cut_the_last_ones(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "machine", Random(1))
    found = []
    for _ in range(20):
        store = SqliteStore(disk.path / "state.sqlite", "CREATE TABLE rows (number INTEGER);")
        before = store.offsets().get(PART, 0)
        committed(store, 50)
        store.begin()
        store.rows.execute("INSERT INTO rows VALUES (-1)")
        disk.after_stop()
        store = SqliteStore(disk.path / "state.sqlite", "CREATE TABLE rows (number INTEGER);")
        assert store.offsets() == {PART: 50}
        committed(store, 80)
        disk.after_power_cut()
        disk.after_power_cut()
        store = SqliteStore(disk.path / "state.sqlite", "CREATE TABLE rows (number INTEGER);")
        assert store.rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert store.rows.execute("SELECT count(*) FROM rows WHERE number < 0").fetchone() == (0,)
        found.append(store.offsets().get(PART, 0))
        assert before <= 80
    assert len(set(found)) > 5
    disk.lose()
    assert list(disk.path.iterdir()) == []


def test_a_file_that_was_about_to_replace_another_is_torn(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "machine", Random(1))
    sizes = set()
    for _ in range(10):
        (disk.path / "snapshot").write_bytes(b"old")
        (disk.path / "snapshot.new").write_bytes(b"x" * 100)
        disk.after_stop()
        sizes.add((disk.path / "snapshot.new").stat().st_size)
        assert (disk.path / "snapshot").read_bytes() == b"old"
    assert len(sizes) > 3


def test_an_upgrade_makes_whole_files_alone_older(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "machine", Random(1))
    store = SqliteStore(disk.path / "snapshot", "CREATE TABLE rows (number INTEGER);")
    committed(store, 50)
    store.close()
    for _ in range(10):
        shutil.copyfile(disk.path / "snapshot", disk.path / "snapshot.new")
        disk.after_upgrade()
        with closing(sqlite3.connect(disk.path / "snapshot")) as file:
            assert file.execute("SELECT count(*) FROM rows").fetchone() == (0,)


def test_a_log_that_fails_loses_nothing_that_it_has_answered(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        behaviour = Behaviour(world.random("log"), typical_s=0.01)
        broker = Broker(TOPICS, 2, behaviour)
        log = SimulatedLog(broker)
        behaviour.fault_rate = 0.5
        answered = []
        for number in range(100):
            (offset,) = await log.append([NewRecord(*P0, b"k", str(number).encode())])
            answered.append((offset, number))
        stored = [(record.offset, int(record.value)) for record in broker.records(P0)]
        assert set(answered) <= set(stored)
        assert len(stored) > 110
        assert [number for _, number in stored] == sorted(number for _, number in stored)

        broker.set_available(False)
        begun_s = world.loop.time()
        with pytest.raises(UnavailableError):
            await log.append([NewRecord(*P0, b"k", b"-1")])
        assert TIMEOUT_S <= world.loop.time() - begun_s < 2 * TIMEOUT_S
        broker.set_available(True)

        process = world.process("cut off")
        broker.cut_off("cut off")
        asking = process.start(log.ends([P0]))
        await asyncio.sleep(TIMEOUT_S / 2)
        assert not asking.done()
        assert await log.ends([P0]) == {P0: broker.end(P0)}
        broker.reach_again("cut off")
        assert await asking == {P0: broker.end(P0)}

        reader, failed = await log.open({P0: 0}), 0
        read: list[Record] = []
        while len(read) < len(stored):
            try:
                read += await reader.read()
            except UnavailableError:
                failed += 1
        assert failed
        assert [record.offset for record in read] == [offset for offset, _ in stored]

        behaviour.fault_rate = 0.0
        reader = await log.open({P0: 0})
        broker.trim(P0, 5)
        with pytest.raises(ConflictError):
            await reader.read()

    World(1, tmp_path).run(scenario)
