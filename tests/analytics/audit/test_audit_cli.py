"""`carillon audit` against a service that answers over gRPC."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.server import AnalyticsServicer
from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from carillon.commands.role_calls import SOCKET_NAME
from carillon.main import main
from protos.analytics.v1.analytics_pb2_grpc import add_AnalyticsServiceServicer_to_server
from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.push.v1.push_pb2 import Audience, Filter, TagGroup
from protos.registry.v1.devices_pb2 import AddStags
from services.log.sqlite.log import SqliteLog
from services.net.rpc.server import serve
from services.process.clock import ManualClock
from tests.analytics.records import (
    APP,
    PARTITIONS,
    T0,
    app_changed,
    app_outcomes,
    device,
    device_command,
    outcomes,
    send,
    started,
)
from tests.analytics.service import new_ingestion, running_ingestion

Carillon = Callable[..., Awaitable[Result]]
ZONE = "Asia/Shanghai"


@pytest.fixture
async def carillon(
    log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Carillon]:
    """Return the command; its service has a push to a device that received it, and a device without tag 5."""
    monkeypatch.setenv("CARILLON_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CARILLON_TIMEZONE", ZONE)
    monkeypatch.chdir(tmp_path)
    await count_days(clickhouse, ZoneInfo(ZONE))
    await log.append(
        [
            app_changed("set", "ack_info on"),
            device(3, time_ms=T0 - 1, tags=[5]),
            device(4, time_ms=T0 - 1),
            send(1000, audience=Audience(filter=Filter(tags=[TagGroup(tags=[5])]))),
            started(1000, 1, [3], T0 + 5),
            *(device_command(5, time_ms=T0 + number, add_stags=AddStags(stags=["a"])) for number in (6, 7)),
            outcomes(1, app_outcomes(1000, [3], Outcome.OUTCOME_KIND_SENT, T0 + 10)),
        ]
    )
    limits = IngestionLimits(flush_s=0.01, catch_up_s=2, stop_s=2)
    async with running_ingestion(new_ingestion(log, clickhouse, tmp_path, limits)) as ingestion:
        servicer = AnalyticsServicer(
            *(ingestion, clickhouse, ManualClock(T0), ZoneInfo(ZONE)), partitions=PARTITIONS, ack_delay_ms=0
        )
        server = serve([f"unix:{tmp_path / SOCKET_NAME}"])
        add_AnalyticsServiceServicer_to_server(servicer, server)
        await server.start()

        async def call(*arguments: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, main, ["audit", *arguments])

        yield call
        await server.stop(1)


async def test_a_push_on_one_device(carillon: Carillon) -> None:
    answer = json.loads((await carillon("push", "1000", "--device", "token-1-4", "--json")).stdout)
    assert answer["partitions"] == [{"partition": 1, "devices": 1}]
    assert answer["records_behind"] == 0
    assert answer["device"] == {
        "token": "token-1-4",
        "in_audience": False,
        "verdict": "excluded by tag 5 (it had no tags)",
        "clauses": [{"text": "tag 5", "holds": False, "found": "no tags"}],
        "timeline": [],
    }
    text = (await carillon("push", "1000", "--device", "token-1-3")).output
    assert "partitions 1: 1" in text
    assert "verdict    in the audience when the push started" in text
    assert [line.split() for line in text.splitlines()[-1:]] == [
        ["2026-09-21", "22:13:20.010", "sent", "1", "message", "1000"]
    ]


async def test_what_a_device_wrote_does_not_control_the_terminal(carillon: Carillon, log: SqliteLog) -> None:
    harmful = "\x1b]0;owned\x07\x9b31m\u202egpj\n2026-09-21 revoked"
    await log.append([device_command(3, time_ms=T0 + 20, add_stags=AddStags(stags=[harmful]))])
    for arguments in (
        ("device", APP, "token-1-3"),
        ("device", APP, "token-1-3", "--json"),
        ("push", "1000", "--device", "token-1-3"),
        ("app", APP, "--from", "2026-09-21", "--to", "2026-09-22T00:00:00+08:00"),
        ("device", APP, harmful),
    ):
        answer = await carillon(*arguments)
        lines = (answer.stdout + answer.stderr).split("\n")
        assert all(line.isprintable() for line in lines), arguments
        assert not any(line.startswith("2026-09-21 revoked") for line in lines), arguments
    assert (
        "\\u001b]0;owned\\u0007\\u009b31m\\u202egpj\\n2026-09-21 revoked"
        in (await carillon("device", APP, "token-1-3")).stdout
    )


async def test_an_app(carillon: Carillon) -> None:
    day = ("--from", "2026-09-21", "--to", "2026-09-22T00:00:00+08:00")
    lines = (await carillon("app", APP, *day, "--json")).stdout.splitlines()
    assert [(answer["event"], answer["count"]) for answer in map(json.loads, lines)] == [
        ("app set", 1),
        ("push", 1),
        ("add stags", 2),
    ]
    text = (await carillon("app", APP, *day)).stdout.splitlines()
    assert text == [
        "2026-09-21 22:13:20.000  app set  ack_info on, through cli from alice@ops, request req-4",
        "2026-09-21 22:13:20.000  push (1 device)  push 1000, broadcast, tag 5, through v2 from 10.0.0.1, "
        "request req-1",
        "2026-09-21 22:13:20.006  add stags (2 times)  through v2 from 10.0.0.3, request req-3",
    ]
    assert (await carillon("app", APP, "--from", "2026-09-22", "--to", "2026-09-23")).output == ""
    unknown = await carillon("app", "77", *day)
    assert (unknown.exit_code, unknown.stderr) == (1, "Error: the event log knows no app with the appkey '77'\n")
    for wrong in (("--from", "yesterday"), ("--from", "2026-09-22", "--to", "2026-09-22")):
        assert (await carillon("app", APP, *wrong)).exit_code == click.UsageError.exit_code


async def test_an_export(carillon: Carillon, tmp_path: Path) -> None:
    printed = await carillon("export", "1000")
    assert printed.exit_code == 0
    assert printed.stdout.splitlines()[1].startswith('"token-1-3",3,1,1000,"sent",""')
    assert (await carillon("export", "1000", "--output", "-")).stdout == printed.stdout
    written = await carillon("export", "1000", "--format", "parquet", "--output", str(tmp_path / "push.parquet"))
    assert (written.exit_code, written.output) == (0, "")
    assert pq.read_table(tmp_path / "push.parquet").to_pydict()["token"] == ["token-1-3"]

    unknown = await carillon("export", "77", "--output", str(tmp_path / "none.csv"))
    assert unknown.exit_code == 1
    assert "no push with the message id 77" in unknown.output
    nowhere = await carillon("export", "1000", "--output", str(tmp_path / "none" / "none.csv"))
    assert "cannot be written: No such file or directory" in nowhere.output
    assert {"none.csv", "none.csv.part"}.isdisjoint(os.listdir(tmp_path))


@pytest.mark.long
async def test_an_audit_that_lacks_the_newest_records_is_refused_unless_that_is_allowed(
    carillon: Carillon, log: SqliteLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stuck = asyncio.Event()

    async def insert(*_: object) -> None:
        await stuck.wait()

    monkeypatch.setattr(ClickHouse, "insert", insert)
    await log.append([send(1001), send(1002)])
    commands = (
        ("push", "1000", "--json"),
        ("device", APP, "token-1-3", "--json"),
        ("app", APP, "--from", "2026-09-21", "--to", "2026-09-22", "--json"),
        ("export", "1000", "--output", str(tmp_path / "push.csv")),
    )
    refused = [await carillon(*command) for command in commands]
    files = os.listdir(tmp_path)
    allowed = [await carillon(*command, "--allow-behind") for command in commands]
    unknown = await carillon("push", "77", "--allow-behind")
    stuck.set()

    told = "analytics cannot answer at present: analytics is 2 records behind the event log; try again later"
    hint = ", or see without them with --allow-behind"
    assert [(result.exit_code, result.stdout) for result in refused] == [(1, "")] * 4
    assert [json.loads(result.stderr) for result in refused[:3]] == [{"error": told + hint}] * 3
    assert (refused[3].stderr, "push.csv" in files) == (f"Error: {told}{hint}\n", False)
    warning = "Incomplete: the newest 2 records of the event log are missing."
    assert [result.exit_code for result in allowed] == [0] * 4
    assert [json.loads(result.stderr) for result in allowed[:3]] == [{"warning": warning, "records_behind": 2}] * 3
    assert [json.loads(result.stdout)["records_behind"] for result in allowed[:2]] == [2, 2]
    assert warning in allowed[3].stderr
    assert (unknown.exit_code, unknown.stderr) == (1, f"Error: {told}\n")
