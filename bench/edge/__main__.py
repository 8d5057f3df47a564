"""Benchmark of the edge: signed pushes that one process accepts durably, beside a floor.

    python -m bench.edge --seconds 5 --connections 64 --log embedded

Single-target pushes and pushes to lists of 1000 tokens go to the v2 interface of one process; each is answered once it
is in the event log. The floor is the same client against the same HTTP server with an application that reads the
request and answers. The client uses part of the machine too, so beside the counted rates the table has the CPU time of
the process for a push, and the rate that one core could reach.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from testkit.installation.processes import Installation
from testkit.kafka.broker import KafkaBroker
from testkit.signing import signed

WARM_UP_S = 1.0
BODIES = 500
PARTITIONS = 32
LIST = 1000


class Run(NamedTuple):
    """A measurement: answers, seconds, the process's CPU seconds, and each answer's time in ms."""

    answers: int
    seconds: float
    cpu_s: float
    times_ms: list[float]

    def row(self, targets: int) -> dict[str, float]:
        cpu_ms = self.cpu_s / self.answers * 1000
        return {
            "pushes_per_s": round(self.answers / self.seconds),
            "targets_per_s": round(self.answers * targets / self.seconds),
            "cpu_ms_per_push": round(cpu_ms, 3),
            "pushes_per_cpu_s": round(1000 / cpu_ms),
            "targets_per_cpu_s": round(1000 / cpu_ms * targets),
            "p50_ms": round(self.times_ms[len(self.times_ms) // 2], 1),
            "p99_ms": round(self.times_ms[len(self.times_ms) * 99 // 100], 1),
        }


class Connection(asyncio.Protocol):
    """A connection that sends the next request when the answer to the last has come."""

    def __init__(self, requests: Iterator[bytes], times_ms: list[float]) -> None:
        self._requests = requests
        self._times_ms = times_ms
        self._answer = b""
        self._started = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._answer += data
        _, found, body = self._answer.partition(b"\r\n\r\n")
        if not found or not body.endswith(b"}"):
            return
        assert b'"result":0' in body, self._answer
        self._answer = b""
        self._times_ms.append((time.perf_counter() - self._started) * 1000)
        self._send()

    def close(self) -> None:
        self._transport.abort()


def signed_requests(appkey: str, secret: str, targets: Sequence[str | list[str]]) -> list[bytes]:
    """Return signed HTTP requests, one for each target."""
    requests = []
    for number, target in enumerate(targets):
        body: dict[str, Any] = {
            "sendTo": {"appkey": {"android": appkey}, "userScope": 5, "token": {"android": target}},
            "msgStyle": {"basic": {"content": f"push {number} 你好", "is_notif": 1}, "android": {"title": "bench"}},
            "option": {"period": 600},
        }
        content = signed(body, secret)
        head = (
            f"POST /v2/push HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
        )
        requests.append(head.encode() + b"\r\n\r\n" + content)
    return requests


async def load(port: int, pid: int, requests: Sequence[bytes], connections: int, seconds: float) -> Run:
    """Send requests over every connection without a pause; measure after a warm-up of one second."""
    loop = asyncio.get_running_loop()
    process = psutil.Process(pid)
    endless = itertools.cycle(requests)
    times_ms: list[float] = []
    open_connections = [
        (await loop.create_connection(lambda: Connection(endless, times_ms), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.sleep(WARM_UP_S)
    times_ms.clear()
    cpu, started = cpu_s(process), time.perf_counter()
    await asyncio.sleep(seconds)
    run = Run(len(times_ms), time.perf_counter() - started, cpu_s(process) - cpu, sorted(times_ms))
    for connection in open_connections:
        connection.close()
    return run


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def server(env: Mapping[str, str], *arguments: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run the measured process; yield its id and the JSON object that it prints."""
    command = [sys.executable, "-m", "bench.edge.process", *arguments]
    process = subprocess.Popen(command, env=dict(env), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def backing(log: str, data: Path) -> Iterator[dict[str, str]]:
    """Run what the measured process needs, and yield the settings for it: with Kafka a broker, and the registry in a
    process of its own."""
    if log == "embedded":
        yield {}
        return
    with contextlib.ExitStack() as stack:
        broker = KafkaBroker(data / "kafka")
        broker.start()
        stack.callback(broker.stop)
        installation = stack.enter_context(contextlib.closing(Installation(data, broker.bootstrap)))
        names = ("CARILLON_KAFKA_BOOTSTRAP", "CARILLON_REGISTRY_ADDR")
        installation.env |= {"CARILLON_PARTITIONS": str(PARTITIONS), "CARILLON_LOG_LEVEL": "WARNING"}
        installation.start("registry")
        yield {name: installation.env[name] for name in names}


def measure(options: argparse.Namespace, data: Path) -> dict[str, dict[str, float]]:
    env = {**os.environ, "CARILLON_DATA_DIR": str(data), "CARILLON_LOG_LEVEL": "WARNING"}
    rows = {}

    def run(pid: int, port: int, requests: Sequence[bytes]) -> Run:
        return uvloop.run(load(port, pid, requests, options.connections, options.seconds))

    with backing(options.log, data) as settings, server({**env, **settings}) as (pid, about):
        tokens = about["tokens"]
        lists = [[tokens[(start + place) % len(tokens)] for place in range(LIST)] for start in range(50)]
        single = signed_requests(about["appkey"], about["secret"], tokens[:BODIES])
        listed = signed_requests(about["appkey"], about["secret"], lists)
        rows["single target"] = run(pid, about["port"], single).row(1)
        rows["list of 1000"] = run(pid, about["port"], listed).row(LIST)
    with server(env, "--floor") as (pid, about):
        rows["floor, single"] = run(pid, about["port"], single).row(1)
        rows["floor, list"] = run(pid, about["port"], listed).row(LIST)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="how long each row is measured")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--log", choices=["embedded", "kafka"], default="embedded")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        rows = measure(options, Path(data))
    if options.json:
        print(json.dumps({"log": options.log, "connections": options.connections, **rows}))
        return
    table = Table(
        title=f"pushes accepted durably by one edge process, {options.log} log, {options.connections} connections"
    )
    table.add_column("")
    for column in next(iter(rows.values())):
        table.add_column(column.replace("_", " "), justify="right")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:,}" for value in row.values()))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
