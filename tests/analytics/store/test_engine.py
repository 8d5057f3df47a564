"""A ClickHouse server that starts late, dies, or whose answers are lost: every row is stored once."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from analytics.ingestion.ingestion import sources
from analytics.main import build
from analytics.projection import AnalyticsStore, StoreStartTimeouts
from analytics.replay import fill, rebuild, verify
from analytics.settings import AnalyticsSettings
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from services.domain.settings import load
from services.domain.topics import TOPICS
from services.errors import InputError, UnavailableError
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.replica.peers import Peers
from services.replica.replay import ReplaySource
from testkit.clickhouse.server import ClickHouseServer, LossyNetwork
from testkit.waiting import until_holds
from tests.analytics.ingestion.test_crashes import assert_exact, new_records
from tests.analytics.service import new_ingestion, running_ingestion, value
from tests.analytics.test_main import context


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClickHouseServer]:
    """A running server of this test alone."""
    server = ClickHouseServer(tmp_path / "server")
    server.start()
    yield server
    server.kill()


def settings_of(server: ClickHouseServer, directory: Path) -> AnalyticsSettings:
    env = {"DATA_DIR": str(directory), "PARTITIONS": "4", "CLICKHOUSE_URL": f"{server.url}/history"}
    return load(AnalyticsSettings, {f"CARILLON_{name}": text for name, text in env.items()})


async def opened(url: str) -> ClickHouse:
    clickhouse = ClickHouse(url, Path(), "history")
    await clickhouse.open()
    await migrate(clickhouse)
    return clickhouse


@pytest.mark.long
async def test_a_server_that_starts_late(
    server: ClickHouseServer, log: SqliteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The services that need it become ready without it after a while, and ingest once it answers."""
    monkeypatch.setattr("analytics.main._START_TIMEOUTS", StoreStartTimeouts(0.01, 0.01))
    server.kill()
    await log.append(new_records(0))
    store, ingestion, *_ = build(settings_of(server, tmp_path), context(log)).services
    assert isinstance(store, AnalyticsStore)
    readies = [asyncio.Event(), asyncio.Event()]
    with capture_logs() as logs:
        tasks = [
            asyncio.create_task(service.run(ready)) for service, ready in zip((store, ingestion), readies, strict=True)
        ]
        async with asyncio.timeout(60):
            for ready in readies:
                await ready.wait()
            await until_holds(lambda: any(line["event"] == "the analytics store does not answer" for line in logs))
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(60):
        await store.opened.wait()
        clickhouse = await opened(server.url)
        while await value(clickhouse, "SELECT count() FROM deliveries") != 300:
            await asyncio.sleep(0.01)
    for task in reversed(tasks):
        task.cancel()
        await asyncio.wait([task])
    await clickhouse.close()


@pytest.mark.long
async def test_a_server_that_is_killed_repeatedly(server: ClickHouseServer, log: SqliteLog, tmp_path: Path) -> None:
    clickhouse = await opened(server.url)
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path)) as ingestion:
        for round_ in range(3):
            await log.append(new_records(round_))
            with pytest.raises(UnavailableError):
                async with asyncio.timeout(60):
                    await asyncio.to_thread(server.kill)
                    await clickhouse.rows("SELECT 1")
            await asyncio.to_thread(server.start)
            assert await ingestion.catch_up() == 0

    await assert_exact(log, clickhouse, tmp_path, 3)
    await clickhouse.close()


@pytest.mark.long
async def test_inserts_whose_answers_are_lost_are_made_once(
    server: ClickHouseServer, log: SqliteLog, tmp_path: Path
) -> None:
    """More answers are lost than the client retries for one insert."""
    async with LossyNetwork(server.port).open() as network:
        clickhouse = await opened(network.url)
        network.to_lose = 12
        await log.append(new_records(0))
        async with running_ingestion(new_ingestion(log, clickhouse, tmp_path)) as ingestion:
            assert await ingestion.catch_up() == 0
        await log.append(new_records(1))

        assert network.lost == 12
        await assert_exact(log, clickhouse, tmp_path, 2)
        await clickhouse.close()


@pytest.mark.long
async def test_a_store_on_a_server_is_rebuilt(server: ClickHouseServer, log: SqliteLog, tmp_path: Path) -> None:
    settings = settings_of(server, tmp_path)
    await log.append(new_records(0))
    ends = await log.ends(sources(4))
    verdict = await verify(settings, ReplaySource(log, ends))
    assert verdict.equal
    assert await rebuild(settings, ReplaySource(log, ends)) == verdict.rebuilt
    (tmp_path / "past").mkdir()
    assert await fill(settings, tmp_path / "past", ReplaySource(log, ends)) == verdict.rebuilt


@pytest.mark.long
async def test_one_of_several_instances_fills_the_whole_past_and_refuses_to_verify(
    server: ClickHouseServer, log: SqliteLog, tmp_path: Path
) -> None:
    settings = settings_of(server, tmp_path)
    await log.append(new_records(0))
    ends = await log.ends(sources(4))
    second = msgspec.structs.replace(settings, shard=1, shards=2)
    for name in ("alone", "second"):
        (tmp_path / name).mkdir()
    whole = await fill(settings, tmp_path / "alone", ReplaySource(log, ends))
    assert await fill(second, tmp_path / "second", ReplaySource(log, ends)) == whole
    with pytest.raises(InputError, match="CARILLON_SHARDS is more than 1"):
        await verify(second, ReplaySource(log, ends))


async def test_the_first_instance_migrates_the_store_and_others_wait(
    server: ClickHouseServer, log: SqliteLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.main._START_TIMEOUTS", StoreStartTimeouts(60, 60))
    peers = Peers({"analytics": [LocalServer().channel()] * 2}, TOPICS)
    role_context = dataclasses.replace(context(log), peers=peers)
    first, second = (
        build(msgspec.structs.replace(settings_of(server, tmp_path), shard=shard, shards=2), role_context).services[0]
        for shard in range(2)
    )
    readies = [asyncio.Event(), asyncio.Event()]
    async with asyncio.timeout(60):
        with capture_logs() as said:
            tasks = [asyncio.create_task(second.run(readies[1]))]
            await until_holds(lambda: any("has yet to apply" in str(line.get("error")) for line in said))
        assert not readies[1].is_set()
        tasks.append(asyncio.create_task(first.run(readies[0])))
        for ready in readies:
            await ready.wait()
    for task in tasks:
        task.cancel()
        await asyncio.wait([task])


async def test_a_wrong_password(server: ClickHouseServer) -> None:
    clickhouse = ClickHouse(server.url.replace("secret", "guess"), Path())
    with pytest.raises(UnavailableError, match="Authentication failed") as refused:
        await clickhouse.open()
    assert "guess" not in str(refused.value)
    await clickhouse.close()
