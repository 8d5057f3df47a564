"""The edge under gunicorn, as `carillon serve edge` runs it."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import edge.serve
from protos.push.v1.push_pb2 import PushCommand
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, App, AppFact
from services.domain.master_key import MasterKey
from services.domain.settings import Settings, SettingsError
from services.domain.topics import APPS, PUSH_COMMANDS, TOPICS, decode
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from testkit import plain_http
from testkit.edge.v2_bodies import broadcast
from testkit.installation.draining import accepted_for, until_stopping
from testkit.ports import free_ports
from testkit.signing import signed
from tests.edge.test_interfaces import plain_answer

SECRET = "s" * 64
CONFIGURE = "from services.process.logs import configure; configure('INFO', text_on_terminal=False)"


async def with_app(directory: Path) -> App:
    """Append an app to the log of a data directory."""
    keys = MasterKey.load(Settings(data_dir=str(directory)).key_file)
    app = App(appkey="1234567890", platform=PLATFORM_ANDROID, default_period_s=60)
    app.sealed_secret = keys.seal(SECRET, app.appkey)
    (directory / "log").mkdir()
    log = SqliteLog(directory / "log" / "events.db", TOPICS)
    await log.append([NewRecord(APPS.name, 0, app.appkey.encode(), AppFact(app=app).SerializeToString())])
    await log.close()
    return app


@asynccontextmanager
async def serving(env: dict[str, str]) -> AsyncIterator[Process]:
    """Run the edge; yield its process. Each line of its log must be a JSON object, at the start and the end too."""
    command = f"import os, edge.serve; {CONFIGURE}; edge.serve.run(os.environ)"
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", command, env={**os.environ, **env}, stdout=DEVNULL, stderr=log
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        log.seek(0)
        lines = [json.loads(line) for line in log]
    events = [line["event"] for line in lines]
    assert events[0].startswith("Starting gunicorn")
    assert any(event.startswith("Started server process") for event in events)
    if process.returncode == 0:
        assert events[-1] == "Shutting down: Master"


async def ready(url: str, process: Process) -> None:
    async with asyncio.timeout(60), plain_http.async_client() as http:
        while process.returncode is None:
            try:
                answer = await http.get(url)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.status_code == 200:
                assert answer.json() == {"status": "ready"}
                return
            assert (answer.status_code, answer.json()) == (503, {"status": "starting"})


async def test_every_interface_answers_on_its_port_until_the_drain_is_over(tmp_path: Path) -> None:
    app = await with_app(tmp_path)
    v2, operations, android, ios = free_ports(4)
    env = {
        "CARILLON_DATA_DIR": str(tmp_path),
        "CARILLON_V2_PORT": str(v2),
        "CARILLON_ANDROID_PORT": str(android),
        "CARILLON_IOS_PORT": str(ios),
        "CARILLON_CONSOLE_PORT": str(operations),
        "CARILLON_KAFKA_BOOTSTRAP": "",
        "CARILLON_DRAIN_S": "1",
        "FORWARDED_ALLOW_IPS": "*",
    }
    later: list[dict[str, Any]] = []
    async with serving(env) as process, plain_http.async_client(timeout=20) as http:
        await ready(f"http://127.0.0.1:{operations}/healthz", process)
        push, forwarded = signed(broadcast(app), SECRET), {"X-Forwarded-For": "203.0.113.9"}
        answer = await http.post(f"http://127.0.0.1:{v2}/v2/push", content=push, headers=forwarded)
        assert answer.json()["result"] == 0
        assert "server" not in answer.headers
        request = b"POST /v2/push HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(push) + push
        behind = json.loads((await plain_answer(v2, request + b"}", ends=True)).partition(b"\r\n\r\n")[2])
        legacy = signed({"appkey": app.appkey, "message": "m"}, SECRET)
        told = [(await http.post(f"http://127.0.0.1:{port}/push", content=legacy)).json() for port in (android, ios)]
        assert [each["result"] for each in told] == [0, 401]
        assert (await http.get(f"http://127.0.0.1:{v2}/healthz")).status_code == 404
        assert (await http.post(f"http://127.0.0.1:{operations}/v2/push")).status_code == 404
        assert "carillon_edge_requests_total" in (await http.get(f"http://127.0.0.1:{operations}/metrics")).text

        async def push_again() -> None:
            async with plain_http.async_client(timeout=20) as anew:
                body = signed(broadcast(app), SECRET)
                later.append((await anew.post(f"http://127.0.0.1:{v2}/v2/push", content=body)).json())
            assert later[-1]["result"] == 0

        assert await accepted_for(process.pid, signal.SIGTERM, push_again) >= 1
        assert await asyncio.wait_for(process.wait(), 60) == 0
    log = SqliteLog(tmp_path / "log" / "events.db", TOPICS)
    records = (await log.select({Partition(PUSH_COMMANDS.name, 0): 0}, 10_000)).records
    await log.close()
    commands: list[PushCommand] = [decode(record) for record in records]
    assert {command.meta.origin.address for command in commands} == {"127.0.0.1"}, "gunicorn's trust is not ours"
    answered = [answer.json()["id"], behind["id"], told[0]["msgid"], *(push["id"] for push in later)]
    assert [command.send.msgid for command in commands[: len(answered)]] == answered


async def test_workers_bound_their_connections_drain_and_end_at_a_second_signal(tmp_path: Path) -> None:
    await with_app(tmp_path)
    names = ("V2", "ANDROID", "IOS", "CONSOLE")
    ports = dict(zip(names, free_ports(4), strict=True))
    env = {f"CARILLON_{name}_PORT": str(port) for name, port in ports.items()}
    env |= {"CARILLON_DATA_DIR": str(tmp_path), "CARILLON_KAFKA_BOOTSTRAP": "", "CARILLON_HTTP_MAX_CONNECTIONS": "4"}
    env |= {"CARILLON_DRAIN_S": "3600"}
    operations = f"http://127.0.0.1:{ports['CONSOLE']}"
    health = f"{operations}/healthz"
    head = b"POST /push HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    async with serving(env) as process, asyncio.timeout(60):
        await ready(health, process)
        clients = []
        for name, status in zip(("ANDROID", "IOS", "ANDROID", "IOS", "V2"), [b" 100 "] * 4 + [b" 503 "], strict=True):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[name])
            clients.append(writer)
            writer.write(head)
            assert status in await reader.readline()
        await ready(health, process)
        for writer in clients:
            writer.close()
        for port in (ports["CONSOLE"], ports["V2"]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n")
            assert b" 431 " in await reader.readline()
            writer.close()
        (worker,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        await until_stopping(operations)
        worker.send_signal(signal.SIGTERM)  # as a service manager does that signals all processes
        async with plain_http.async_client(timeout=60) as http:
            assert (await http.post(f"http://127.0.0.1:{ports['V2']}/v2/push", content=b"{}")).json()["result"] == 400
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM
    await asyncio.to_thread(worker.wait, 30)


async def test_workers_end_when_gunicorn_is_killed(tmp_path: Path) -> None:
    await with_app(tmp_path)
    names = ("V2", "ANDROID", "IOS", "CONSOLE")
    ports = dict(zip(names, free_ports(4), strict=True))
    env = {f"CARILLON_{name}_PORT": str(port) for name, port in ports.items()}
    env |= {"CARILLON_DATA_DIR": str(tmp_path), "CARILLON_KAFKA_BOOTSTRAP": ""}
    async with serving(env) as process:
        await ready(f"http://127.0.0.1:{ports['CONSOLE']}/healthz", process)
        (worker,) = psutil.Process(process.pid).children()
        worker.suspend()  # as one does whose event loop is busy for ever
        process.kill()
        await process.wait()
        await asyncio.to_thread(worker.wait, 30)
    socket.create_server(("127.0.0.1", ports["V2"])).close()


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"CARILLON_V2_PORT": "no"}, "CARILLON_V2_PORT is 'no'"),
        ({"CARILLON_EDGE_WORKERS": "0"}, "CARILLON_EDGE_WORKERS is '0'"),
        ({"CARILLON_V2_PORT": "8080"}, "CARILLON_V2_PORT and CARILLON_CONSOLE_PORT must be four different ports"),
        ({"CARILLON_IOS_PORT": "8001"}, "CARILLON_V2_PORT and CARILLON_CONSOLE_PORT must be four different ports"),
        ({"CARILLON_TIMED_MIN_LEAD_S": "-1"}, "CARILLON_TIMED_MIN_LEAD_S is '-1'"),
    ],
)
def test_wrong_settings_stop_the_start(env: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        edge.serve.run(env)
