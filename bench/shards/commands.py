"""Benchmark of the one partition of push-commands, which every instance of delivery reads: pushes to single devices.

    python -m bench.shards.commands --rates 1000 5000 --instances 16 --seconds 20

Starts a Kafka broker, the first of N instances of delivery, and readers of push-commands in place of the other ones,
all in one process. Then it appends pushes to one random device each, at each rate. `started` is the time from the
moment when a push to one of the instance's devices was due to be appended until the instance decided its start. The
rest is for each push: the CPU time of the instance; of one reader, the floor of an instance's work; and of the broker,
which sends each push to all of them; and the bytes of a command.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from bench.growth.records import DeviceColumns, push, push_record
from bench.programs import Program
from bench.shards.records import APP, PARTITIONS, request_of
from services.domain.topics import PUSHES, TOPICS, decode
from services.log.kafka.log import KafkaLog
from services.log.port import Log, Partition
from services.log.topics import owned
from services.process.clock import SystemClock
from testkit.delivery.message_ids import SoleWriterIds
from testkit.installation.processes import Installation
from testkit.kafka.broker import KafkaBroker, kafka

_INSTANCE = "delivery-0"
_STEP_S = 0.02
_NUMBERS = 1_000_000
_LATEST_S = 60.0


class Row(NamedTuple):
    """The figures at one rate. `rate`: pushes appended a second; the other fields are the columns of the table."""

    rate: int
    started_p50_ms: int
    started_p99_ms: int
    started_max_ms: int
    instance_us: float
    reader_us: float
    broker_us: float
    size: float


class Load:
    """Appends pushes to one random device each; those of the first instance are noted with the time they were due."""

    def __init__(self, log: Log, instances: int, ids: SoleWriterIds) -> None:
        self.due_ms: dict[int, float] = {}
        self.size = 0
        self._log = log
        self._own = owned(PARTITIONS, 0, instances)
        self._ids = ids
        self._request = request_of(1)
        self._random = np.random.default_rng(1)

    async def run(self, rate: int, seconds: float) -> tuple[int, float]:
        """Append at this rate; return how many pushes, and in how many seconds."""
        begun_s, count = time.time(), 0
        while (passed_s := time.time() - begun_s) < seconds:
            due = int(passed_s * rate)
            await self._append(due - count, (begun_s + np.arange(count, due) / rate) * 1000)
            count = due
            await asyncio.sleep(max(0.0, begun_s + passed_s + _STEP_S - time.time()))
        return count, time.time() - begun_s

    async def _append(self, count: int, due_ms: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> None:
        partitions = self._random.integers(0, PARTITIONS, count).astype(np.uint16)
        numbers = self._random.integers(0, _NUMBERS, count).astype(np.uint32)
        new_records = []
        for at, moment_ms in enumerate(due_ms.tolist()):
            columns = DeviceColumns(partitions[at : at + 1], numbers[at : at + 1])
            command = push(self._ids, APP, columns, int(moment_ms))
            command.send.request_json = self._request
            new_records.append(push_record(command))
            self.size += len(new_records[-1].value)
            if partitions[at] in self._own:
                self.due_ms[command.send.msgid] = moment_ms
        if new_records:
            await self._log.append(new_records)


class Measured:
    """The processes of a run; `measure` returns their figures at a rate."""

    def __init__(self, installation: Installation, readers: Program, instances: int) -> None:
        self._installation = installation
        self._readers = readers
        self._instances = instances
        self._ids = SoleWriterIds(SystemClock())
        self._broker = next(child for child in psutil.Process().children() if child.name() == "java")

    async def measure(self, log: Log, rate: int, seconds: float) -> Row:
        load, before = Load(log, self._instances, self._ids), self._cpu_s()
        own = [Partition(PUSHES.name, number) for number in owned(PARTITIONS, 0, self._instances)]
        ends = await log.ends(own)
        count, lasted_s = await load.run(rate, seconds)
        async with asyncio.timeout(_LATEST_S):
            delays_ms = await _delays_ms(log, ends, load.due_ms)
        instance, readers, broker = (after - earlier for after, earlier in zip(self._cpu_s(), before, strict=True))
        p50, p99 = np.percentile(delays_ms, [50, 99])
        return Row(
            round(count / lasted_s),
            round(p50),
            round(p99),
            round(max(delays_ms)),
            1e6 * instance / count,
            1e6 * readers / count / max(1, self._instances - 1),
            1e6 * broker / count,
            load.size / count,
        )

    def _cpu_s(self) -> tuple[float, float, float]:
        times = self._broker.cpu_times()
        return self._installation.cpu_s(_INSTANCE), self._readers.cpu_s(), times.user + times.system


async def _delays_ms(log: Log, starts: Mapping[Partition, int], due_ms: Mapping[int, float]) -> list[float]:
    """Wait until all of the pushes have started; return for each the time from when it was due until its start."""
    reader = await log.open(starts)
    delays_ms: list[float] = []
    try:
        while len(delays_ms) < len(due_ms):
            facts = [decode(record) for record in await reader.read()]
            delays_ms += [fact.meta.time_ms - due_ms[fact.msgid] for fact in facts if fact.HasField("started")]
    finally:
        await reader.close()
    return delays_ms


@contextlib.contextmanager
def running_processes(directory: Path, instances: int) -> Iterator[tuple[KafkaBroker, Measured]]:
    """Run a broker, one instance of delivery, and the readers in place of the others."""
    with kafka(directory / "broker") as broker:
        installation = Installation(directory / "data", broker.bootstrap, shards=instances)
        installation.env["CARILLON_PARTITIONS"] = str(PARTITIONS)
        with contextlib.closing(installation):
            installation.start(_INSTANCE)
            command = [sys.executable, "-m", "bench.shards.readers", broker.bootstrap, str(instances - 1)]
            with contextlib.closing(Program(command, core=None)) as readers:
                readers.receive()
                yield broker, Measured(installation, readers, instances)


async def measure(bootstrap: str, processes: Measured, rates: list[int], seconds: float) -> list[Row]:
    log = await KafkaLog.connect(bootstrap, TOPICS, PARTITIONS)
    try:
        return [await processes.measure(log, rate, seconds) for rate in rates]
    finally:
        await log.close()


def table_of(rows: list[Row]) -> Table:
    headings = ("pushes/s", "started p50 ms", "p99", "longest", "instance us", "reader us", "broker us", "bytes")
    table = Table(*headings, box=None)
    for row in rows:
        started_ms = (f"{each:,}" for each in (row.started_p50_ms, row.started_p99_ms, row.started_max_ms))
        each_push = (f"{each:.1f}" for each in (row.instance_us, row.reader_us, row.broker_us))
        table.add_row(f"{row.rate:,}", *started_ms, *each_push, f"{row.size:.0f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0, help="at each rate")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        running_processes(Path(directory), options.instances) as (broker, processes),
    ):
        rows = asyncio.run(measure(broker.bootstrap, processes, options.rates, options.seconds))
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
    else:
        Console(width=100).print(table_of(rows))


if __name__ == "__main__":
    main()
