"""The wired role: settings, exclusive access to the store, rebuild and verify, and the operators' command."""

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from analytics.ingestion.ingestion import sources
from analytics.main import build
from analytics.projection import StoreStartTimeouts, connect
from analytics.replay import rebuild, verify
from analytics.settings import AnalyticsSettings
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate, migrations
from carillon.commands.audit import audit
from carillon.commands.role_calls import SOCKET_NAME
from protos.analytics.v1.analytics_pb2 import AuditPushRequest
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.registry.v1.devices_pb2 import NumberRegistration
from services.domain.apps import AppDirectory
from services.domain.master_key import Keys
from services.domain.role import RoleContext
from services.domain.settings import SettingsError, load
from services.domain.topics import TOPICS
from services.errors import ConflictError, NotFoundError, UnavailableError
from services.log.port import Log
from services.log.sqlite.log import SqliteLog
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Server, serve
from services.process.clock import SystemClock
from services.replica.peers import Peers
from services.replica.replay import ReplaySource
from testkit.replay_progress import CountedProgress
from tests.analytics.records import T0, app_outcomes, device, outcomes, send, started


def settings_in(directory: Path, **env: str) -> AnalyticsSettings:
    names = {f"CARILLON_{name.upper()}": value for name, value in env.items()}
    return load(AnalyticsSettings, {"CARILLON_DATA_DIR": str(directory), "CARILLON_PARTITIONS": "4", **names})


def context(log: Log) -> RoleContext:
    return RoleContext(log, SystemClock(), Peers({}, TOPICS), Keys({}), AppDirectory(log))


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"clickhouse_url": "clickhouse:9000"}, "CARILLON_CLICKHOUSE_URL"),
        ({"clickhouse_url": "http://host:port"}, "CARILLON_CLICKHOUSE_URL"),
        ({"shards": "2"}, "CARILLON_CLICKHOUSE_URL"),
        ({"timezone": "Mars/Olympus"}, "CARILLON_TIMEZONE"),
        ({"audit_days": "100"}, "CARILLON_AUDIT_DAYS is 100: use 366 or more"),
        ({"content_days": "0"}, "CARILLON_CONTENT_DAYS is '0': use a whole number >= 1"),
        ({"session_days": "7"}, "CARILLON_SESSION_DAYS is '7': use a whole number >= 31"),
        ({"refusal_days": "31"}, "CARILLON_REFUSAL_DAYS is '31': use a whole number <= 30"),
    ],
)
def test_wrong_settings(tmp_path: Path, env: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        settings_in(tmp_path, **env)


def test_the_url_names_the_database(tmp_path: Path) -> None:
    assert connect(settings_in(tmp_path, clickhouse_url="https://u:p@host:8443/history")).database == "history"
    assert connect(settings_in(tmp_path, clickhouse_url="http://host:8123")).database == "carillon"


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(migration.statements for migration in migrations())


async def test_migrations_are_applied_once_and_those_of_an_older_store_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *older, newest = migrations()
    clickhouse = ClickHouse(None, tmp_path / "chdb")
    await clickhouse.open()
    try:
        with capture_logs() as logged:
            with monkeypatch.context() as patch:
                patch.setattr("analytics.store.migrate.migrations", lambda: older)
                await migrate(clickhouse)
            await migrate(clickhouse)
            await migrate(clickhouse)
        assert [(entry["event"], entry["version"]) for entry in logged] == [
            ("analytics store created", older[-1].version),
            ("analytics store migrated", newest.version),
        ]
        rows = await clickhouse.rows("SELECT version, count() FROM schema_migrations GROUP BY version ORDER BY version")
        assert [tuple(row) for row in rows] == [(migration.version, 1) for migration in migrations()]
    finally:
        await clickhouse.close()


async def test_a_store_that_is_not_open_is_unavailable(tmp_path: Path) -> None:
    clickhouse = ClickHouse(None, tmp_path / "chdb")
    with pytest.raises(UnavailableError, match="not open"):
        await clickhouse.rows("SELECT 1")
    assert not (tmp_path / "chdb").exists()
    await clickhouse.close()


async def test_the_service_starts_without_an_embedded_store_that_cannot_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the store, and fills it, as soon as the cause has gone."""
    monkeypatch.setattr("analytics.main._START_TIMEOUTS_WITH_CHDB", StoreStartTimeouts(0.01, 60))
    settings = settings_in(tmp_path)
    in_the_way = settings.state_dir("analytics") / "chdb"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("no directory")
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    await log.append([send(1000)])
    role = build(settings, context(log))
    with capture_logs() as logs:
        tasks = []
        async with asyncio.timeout(60):
            for service in role.services:
                ready = asyncio.Event()
                tasks.append(asyncio.create_task(service.run(ready)))
                await ready.wait()
    assert [line["log_level"] for line in logs if "starts without analytics" in line["event"]] == ["error"]
    server = LocalServer()
    role.servicers[0](cast(Server, server))
    stub = AnalyticsServiceStub(server.channel())

    in_the_way.unlink()
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(UnavailableError, NotFoundError):
                assert (await stub.AuditPush(AuditPushRequest(msgid=1000))).kind == "broadcast"
                break
    for task in reversed(tasks):
        task.cancel()
        await asyncio.wait([task])
    await log.close()


async def test_a_server_that_does_not_answer(tmp_path: Path, unused_tcp_port: int) -> None:
    clickhouse = ClickHouse(f"http://127.0.0.1:{unused_tcp_port}", tmp_path)
    with pytest.raises(UnavailableError, match="ClickHouse"):
        await clickhouse.open()
    await clickhouse.close()


async def test_only_one_process_opens_the_store(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    clickhouse = connect(settings)
    await clickhouse.open()
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    try:
        with pytest.raises(ConflictError, match="stop the running service"):
            await rebuild(settings, ReplaySource(log, {}))
        code = (
            "import asyncio, sys; from pathlib import Path; from analytics.store.clickhouse import ClickHouse\n"
            "asyncio.run(ClickHouse(None, Path(sys.argv[1])).open())"
        )
        path = str(settings.state_dir("analytics") / "chdb")
        child = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60
        )
        assert "ConflictError" in child.stderr
        assert "stop the running service" in child.stderr
    finally:
        await log.close()
        await clickhouse.close()


@pytest.mark.long
async def test_rebuild_and_verify(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    await log.append(
        [
            device(3, attributes={"region": "北京市"}),
            device(3, time_ms=T0 + 1, alias="a"),
            send(1000),
            started(1000, 1, [3]),
            outcomes(1, app_outcomes(1000, [3, 4], Outcome.OUTCOME_KIND_SENT)),
        ]
    )
    ends = await log.ends(sources(4))
    progress = CountedProgress()
    try:
        verdict = await verify(settings, ReplaySource(log, ends, progress))
        assert verdict.equal
        assert progress.ahead == progress.passed == 5, "the device's first state was compacted away, and is passed by"

        clickhouse = connect(settings)
        await clickhouse.open()
        await clickhouse.command("ALTER TABLE deliveries DELETE WHERE number = 4 SETTINGS mutations_sync = 2")
        await clickhouse.close()
        assert not (await verify(settings, ReplaySource(log, ends))).equal

        assert await rebuild(settings, ReplaySource(log, ends)) == verdict.rebuilt
        assert (await verify(settings, ReplaySource(log, ends))).equal
    finally:
        await log.close()


@pytest.mark.long
async def test_a_device_that_registered_again_is_verified(tmp_path: Path) -> None:
    """The compacted topic keeps the last state, which names the first registration."""
    settings = settings_in(tmp_path)
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    first = NumberRegistration(number=3, registered_ms=T0)
    try:
        await log.append([device(3)])
        await verify(settings, ReplaySource(log, await log.ends(sources(4))))
        await log.append([device(3, time_ms=T0 + 9, registered_ms=T0 + 9, registrations=[first])])
        ends = await log.ends(sources(4))
        assert (await verify(settings, ReplaySource(log, ends))).equal

        clickhouse = connect(settings)
        await clickhouse.open()
        registered = "SELECT toUnixTimestamp64Milli(registered) FROM registrations"
        assert [tuple(row) for row in await clickhouse.rows(registered)] == [(T0,)]
        await clickhouse.command("TRUNCATE TABLE registrations")
        await clickhouse.close()
        assert not (await verify(settings, ReplaySource(log, ends))).equal
    finally:
        await log.close()


async def test_the_role_answers_the_operators_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in(tmp_path)
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    await log.append(
        [
            device(3, alias="alice"),
            send(1000),
            started(1000, 1, [3]),
            outcomes(1, app_outcomes(1000, [3], Outcome.OUTCOME_KIND_SENT, T0 + 10)),
        ]
    )
    role = build(settings, context(log))
    tasks = []
    for service in role.services:
        ready = asyncio.Event()
        tasks.append(asyncio.create_task(service.run(ready)))
        await asyncio.wait_for(ready.wait(), 60)
    server = serve([f"unix:{tmp_path / SOCKET_NAME}"])
    for add in role.servicers:
        add(server)
    await server.start()
    monkeypatch.setenv("CARILLON_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CARILLON_TIMEZONE", "Asia/Shanghai")
    monkeypatch.chdir(tmp_path)

    async def carillon(*arguments: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, audit, list(arguments), terminal_width=200)
        return result.exit_code, result.output

    try:
        code, output = await carillon("push", "1000", "--json")
        assert code == 0
        push = json.loads(output)
        assert [entry["event"] for entry in push["timeline"]] == ["command", "audience", "sent"]
        assert (push["msgid"], push["audience_count"]) == (1000, 1)
        assert push["states"] == [{"state": "sent", "reason": "", "devices": 1}]

        code, output = await carillon("push", "1000")
        assert code == 0
        assert "everyone (1 device)" in output
        assert "2026-09-21 22:13:20.010" in output
        assert [line.split() for line in output.splitlines()[-2:]] == [["state", "devices", "reason"], ["sent", "1"]]

        code, output = await carillon("device", "1234567890", "token-1-3", "--json")
        assert [entry["event"] for entry in json.loads(output)["timeline"]] == ["registered", "audience", "sent"]

        code, output = await carillon("device", "1234567890", "token-1-3")
        assert "alias alice" in output

        code, output = await carillon("push", "77")
        assert code == 1
        assert "no push with the message id 77" in output
    finally:
        await server.stop(1)
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task], timeout=20)
            assert task.cancelled()
        await log.close()
