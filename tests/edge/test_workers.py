"""The operations endpoint of an edge with two workers, on a real broker: each worker answers for both."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from edge.workers import merged, merged_readiness
from services.domain.master_key import create_master
from services.domain.role_context import role_context
from services.domain.settings import Settings, load
from services.domain.topics import TOPICS
from services.log.kafka.log import KafkaLog
from services.net.http.operations import Stage, readiness
from services.replica.peers import Peers
from testkit import plain_http
from testkit.kafka.broker import KafkaBroker
from testkit.ports import free_ports
from testkit.waiting import until
from tests.edge.test_serve import serving

SERIES = re.compile(r'^carillon_edge_requests_total\{.*path="/v2/push".*worker="(\d)".*\} (\S+)$', re.MULTILINE)
UPTIME = re.compile(r'^process_start_time_seconds\{worker="(\d)"\}', re.MULTILINE)


def test_the_metrics_of_workers_stand_side_by_side() -> None:
    counter = '# HELP a_total A thing\n# TYPE a_total counter\na_total{x="y"} %s\n'
    text = merged({"1": counter % "1.0", "2": counter % "2.0"}).decode()
    assert text == (
        '# HELP a_total A thing\n# TYPE a_total counter\na_total{worker="1",x="y"} 1.0\na_total{worker="2",x="y"} 2.0\n'
    )


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        (("ready", "ready"), (200, "ready")),
        (("ready", "starting"), (503, "starting")),
        (("stopping", "stopping"), (503, "stopping")),
        (("stopping", "ready"), (200, "ready")),
        (("stopping", "starting"), (503, "starting")),
        (("stopping", None), (503, "not ready")),
    ],
)
def test_workers_that_stop_count_when_no_others_are_there(
    stages: tuple[Stage | None, ...], told: tuple[int, str]
) -> None:
    answers: dict[str, httpx.Response | None] = {}
    for number, stage in enumerate(stages, 1):
        status, _, body = readiness(stage or "ready", {})
        answers[str(number)] = httpx.Response(status, content=body) if stage else None
    status, _, body = merged_readiness(answers)
    assert (status, json.loads(body)["status"]) == told


@pytest.mark.parametrize(("shared", "told"), [(("log",), (200, "ready")), ((), (503, "not ready"))])
def test_a_log_that_serves_no_edge_leaves_the_workers_ready(shared: tuple[str, ...], told: tuple[int, str]) -> None:
    answers: dict[str, httpx.Response | None] = {}
    for number, (problems, of_all) in enumerate(((dict[str, str](), ()), ({"log": "is away"}, shared)), 1):
        status, _, body = readiness("ready", problems, of_all)
        answers[str(number)] = httpx.Response(status, content=body)
    status, _, body = merged_readiness(answers)
    found = json.loads(body)
    assert ((status, found["status"]), found["problems"]) == (told, {"worker 2: log": "is away"})


@pytest.mark.long
@pytest.mark.kafka
async def test_metrics_and_readiness_are_those_of_both_workers(tmp_path: Path, empty_broker: KafkaBroker) -> None:
    await (await KafkaLog.connect(empty_broker.bootstrap, TOPICS, 1)).close()
    create_master(tmp_path / "master.key")
    names = ("V2", "ANDROID", "IOS", "CONSOLE")
    ports = dict(zip(names, free_ports(4), strict=True))
    env = {f"CARILLON_{name}_PORT": str(port) for name, port in ports.items()}
    env |= {"CARILLON_DATA_DIR": str(tmp_path), "CARILLON_PARTITIONS": "1", "CARILLON_EDGE_WORKERS": "2"}
    env |= {"CARILLON_KAFKA_BOOTSTRAP": empty_broker.bootstrap}
    operations = f"http://127.0.0.1:{ports['CONSOLE']}"

    async with role_context(load(Settings, env), Peers({}, TOPICS)):
        pass  # without a registry, the edge's keys must be in the log

    async with serving(env) as process:

        async def get(path: str) -> httpx.Response:
            """Ask over a new connection, so that either worker may answer."""
            async with plain_http.async_client(timeout=60) as http:
                return await http.get(operations + path)

        async def ready() -> bool:
            assert process.returncode is None
            try:
                return (await get("/healthz")).status_code == 200
            except httpx.TransportError:
                return False

        await until(ready)
        assert (await get("/healthz")).content == b'{"status":"ready"}'
        for _ in range(20):
            async with plain_http.async_client(timeout=60) as http:
                assert (await http.post(f"http://127.0.0.1:{ports['V2']}/v2/push", content=b"{}")).json()["result"]
        for _ in range(5):
            text = (await get("/metrics")).text
            assert sum(float(value) for _, value in SERIES.findall(text)) == 20
            assert UPTIME.findall(text) == ["1", "2"]

        first, second = psutil.Process(process.pid).children()
        os.kill(first.pid, signal.SIGSTOP)
        found = await get("/healthz")
        assert found.status_code == 503
        (problem,) = found.json()["problems"].items()
        assert problem in {("worker 1", "does not answer"), ("worker 2", "does not answer")}
        assert (await get("/livez")).status_code == 200
        os.kill(first.pid, signal.SIGCONT)
        await until(ready)

        second.kill()
        await asyncio.to_thread(second.wait, 60)
        await until(ready)
        assert UPTIME.findall((await get("/metrics")).text) == ["1", "2"]
