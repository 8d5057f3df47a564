"""One broadcast from its HTTP request to the last row in the analytics store, stage by stage.

    python -m bench.broadcast --devices 15000
    python -m bench.broadcast --devices 5000 --roles --rounds 5 --json

Starts `carillon up`, or with --roles one process a role over a Kafka broker; connects new devices to the gateway, each
of which acknowledges its pushes (one C program, bench/native/clients.c); and sends broadcasts, one after the other. The
times are from the request's first byte until

  answered         the request was answered
  started          a reader of the log has the whole audience
  first frame      the first device received the message
  last frame       the last device received it
  acknowledged     the last acknowledgement was handed to the kernel
  outcomes in log  a reader of the log has the last acknowledgement
  rows             the statistics count it

Devices a second are all devices divided by that time. The log is polled every 2 ms; the statistics are polled every
20 ms once the log has all outcomes.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from bench.broadcast.watch import PARTITIONS, Watch
from bench.gateway.protocols import masked, upgraded
from bench.programs import Built, Program, check_open_files, note
from protos.analytics.v1.analytics_pb2 import StatisticsKind, StatisticsRequest
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.domain.topics import TOPICS
from services.log.kafka.log import KafkaLog
from services.log.port import Log, Partition
from services.log.sqlite.log import SqliteLog
from services.net.rpc.channel import connect
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import UNLIMITED_REGISTRATIONS, Installation
from testkit.kafka.broker import KafkaBroker

STAGES = ("answered", "started", "first frame", "last frame", "acknowledged", "outcomes in log", "rows")
_ROWS_POLL_S = 0.02
_ROUND_S = 120.0

Times = dict[str, float]
"""Milliseconds since the request, by stage."""


class Broadcasts:
    """Sends broadcasts one after the other to the same devices."""

    def __init__(
        self, installation: Installation, app: AppCredentials, log: Log, clients: Program, devices: int
    ) -> None:
        self._app = app
        self._log = log
        self._clients = clients
        self._devices = devices
        self._server = AppServer(installation.v2_url)
        analytics = installation.env.get(
            "CARILLON_ANALYTICS_ADDR", f"unix:{installation.data.absolute()}/carillon.sock"
        )
        self._channel = connect(analytics)

    async def send(self, number: int) -> Times:
        watch = Watch(self._log, self._devices)
        watching = asyncio.create_task(watch.run(ready := asyncio.Event()))
        await ready.wait()
        self._clients.send(f"acknowledge {self._devices}")
        frames = asyncio.create_task(asyncio.to_thread(self._clients.receive))
        began = time.monotonic_ns()
        answer = await self._server.push(self._request(number), self._app.secret_key)
        answered = time.monotonic_ns()
        if answer["result"] != 0:
            raise SystemExit(f"the broadcast was refused: {answer}")
        first, last, acknowledged, _ = await frames
        await watching
        moments = [answered, await watch.started, first, last, acknowledged, await watch.received]
        moments.append(await self._counted(answer["id"]))
        return {stage: (moment - began) / 1e6 for stage, moment in zip(STAGES, moments, strict=True)}

    async def close(self) -> None:
        await self._server.close()
        await self._channel.close()

    def _request(self, number: int) -> dict[str, object]:
        return {
            "sendTo": {"appkey": {"android": self._app.appkey}, "userScope": 1},
            "msgStyle": {
                "basic": {"content": f"broadcast {number} " + "x" * 48, "is_notif": 1},
                "android": {"title": "A title", "sound": True},
            },
            "option": {"period": 600},
        }

    async def _counted(self, msgid: int) -> int:
        """Return once the statistics count all devices, with the time in ns."""
        stub = AnalyticsServiceStub(self._channel)
        kind = StatisticsKind.STATISTICS_KIND_BROADCASTS
        while True:
            answer = await stub.Statistics(StatisticsRequest(appkey=self._app.appkey, kind=kind, msgid=msgid))
            if sum(row.received for row in answer.broadcasts) >= self._devices:
                return time.monotonic_ns()
            await asyncio.sleep(_ROWS_POLL_S)


async def measure(
    installation: Installation, clients: Program, app: AppCredentials, devices: int, rounds: int
) -> list[Times]:
    async with _log(installation) as log:
        broadcasts = Broadcasts(installation, app, log, clients, devices)
        try:
            times = []
            for number in range(rounds):
                async with asyncio.timeout(_ROUND_S):
                    times.append(await broadcasts.send(number))
            return times
        finally:
            await broadcasts.close()


@contextlib.asynccontextmanager
async def _log(installation: Installation) -> AsyncIterator[Log]:
    bootstrap = installation.env.get("CARILLON_KAFKA_BOOTSTRAP")
    log: Log
    if bootstrap:
        log = await KafkaLog.connect(bootstrap, TOPICS, partitions=PARTITIONS)
    else:
        log = SqliteLog(installation.data / "log" / "events.db", TOPICS, read_only=True)
    try:
        yield log
    finally:
        await log.close()


@contextlib.contextmanager
def running(directory: Path, roles: bool) -> Iterator[Installation]:
    """Run an installation; with `roles` one process a role."""
    broker = KafkaBroker(directory / "kafka") if roles else None
    if broker:
        broker.start()
        asyncio.run(_make_topics(broker.bootstrap))
    installation = Installation(directory / "data", broker.bootstrap if broker else None)
    installation.env |= {
        "CARILLON_PARTITIONS": str(PARTITIONS),
        "CARILLON_LOG_LEVEL": "WARNING",
        **UNLIMITED_REGISTRATIONS,
    }
    try:
        installation.start()
        yield installation
        installation.stop()
    finally:
        installation.close()
        if broker:
            broker.stop()


async def _make_topics(bootstrap: str) -> None:
    """Create the topics: a new broker takes longer for some hundred partitions than the start of a role waits."""
    log = await KafkaLog.connect(bootstrap, TOPICS, partitions=PARTITIONS, timeout_s=_ROUND_S)
    await log.ends(
        Partition(topic.name, number) for topic in TOPICS.values() for number in range(topic.partitions(PARTITIONS))
    )
    await log.close()


def run(options: argparse.Namespace, directory: Path) -> tuple[float, list[Times]]:
    """Return the devices registered a second, and the stages of each broadcast."""
    built = Built(directory)
    with running(directory, options.roles) as installation:
        app = installation.create_app()
        port = int(installation.env["CARILLON_GATEWAY_PORT"])
        hello = upgraded(masked(json.dumps({"type": "hello", "appkey": app.appkey}).encode()))
        note(f"{options.devices:,} devices register and connect")
        with built.clients(port, [hello] * options.devices, b'"type":"welcome"', options.at_once) as (clients, opened):
            clients.request("quiet 1000")
            note(f"{options.rounds} broadcasts")
            times = asyncio.run(measure(installation, clients, app, options.devices, options.rounds))
        return options.devices / (opened[1] - opened[0]) * 1e9, times


def show(options: argparse.Namespace, registered_per_s: float, times: list[Times]) -> None:
    median = {stage: statistics.median(each[stage] for each in times) for stage in STAGES}
    how = "one process a role over Kafka" if options.roles else "`carillon up`"
    table = Table(title=f"a broadcast to {options.devices:,} connected devices, {how}, {len(times)} times")
    table.add_column("stage")
    for column in ("median ms", "least", "most", "devices/s"):
        table.add_column(column, justify="right")
    table.add_column("from the request", width=40)
    for stage in STAGES:
        all_ms = [each[stage] for each in times]
        rate = f"{options.devices / median[stage] * 1000:,.0f}" if stage not in ("answered", "first frame") else ""
        numbers = [f"{value:,.1f}" for value in (median[stage], min(all_ms), max(all_ms))]
        table.add_row(stage, *numbers, rate, Bar(max(median.values()), 0, median[stage]))
    console = Console(width=110)
    console.print(table)
    console.print(f"before that {registered_per_s:,.0f} devices/s registered and connected")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2000, metavar="N", help="default: 2000")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="broadcasts; default: 3")
    parser.add_argument("--roles", action="store_true", help="one process a role over Kafka (needs Java and Maven)")
    parser.add_argument("--at-once", type=int, default=256, metavar="N", help="connections being opened at a time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    check_open_files(options.devices)
    with tempfile.TemporaryDirectory(prefix="carillon-bench-") as directory:
        registered_per_s, times = run(options, Path(directory))
    if options.json:
        about = {"devices": options.devices, "roles": options.roles, "registered_per_s": round(registered_per_s)}
        print(json.dumps({**about, "stages_ms": times}))
    else:
        show(options, registered_per_s, times)


if __name__ == "__main__":
    main()
