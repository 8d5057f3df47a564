"""Benchmark of ingestion batches: CPU time of analytics for a push, by the seconds that a batch gathers records.

    python -m bench.analytics.batches --rate 300 --seconds 60 --intervals 1 2 5

For each interval a process of its own ingests what is appended to an event log: unicast pushes at the rate, each sent
and received, 25 appends a second, as delivery makes them. No statistics are requested, so each batch gathers for the
whole interval. At the end the ingestion catches up, as it does for a request of statistics. `none` is the same process
without a push: its CPU time is subtracted from that of the pushes.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from pyroaring import BitMap
from rich.console import Console
from rich.table import Table

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.ingestion.ingestion import Ingestion, sources
from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from bench.analytics.history import FIRST_UNICAST, PARTITIONS, History, command, outcomes, started
from bench.analytics.questions import ZONE
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import Kind
from services.domain.topics import TOPICS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import SystemClock
from services.process.logs import configure
from services.replica.dead_letters import DeadLetters

_DEVICES = 100_000
_APPENDS_PER_S = 25
_POLL_S = 1.0
_EVENTS = "SELECT event, value FROM system.events WHERE event IN {names:Array(String)}"
_PARTS = ["InsertedCompactParts", "InsertedWideParts"]
_MERGED = ["MergedRows", "InsertedRows"]


async def ingested(directory: Path, interval_s: float) -> dict[str, Any]:
    """Ingest the directory's log until standard input ends, then catch up; return the measured figures by name."""
    log = SqliteLog(directory / "log" / "events.db", TOPICS, read_only=True, poll_s=_POLL_S)
    clickhouse = ClickHouse(None, directory / "chdb")
    await clickhouse.open()
    await migrate(clickhouse)
    await count_days(clickhouse, ZONE)
    for sql, parameters in History(_DEVICES, 0, SystemClock().now_ms()).statements()[:2]:
        await clickhouse.command(sql, parameters)
    dead_letters = DeadLetters(directory / "dead-letters.jsonl", "analytics")
    limits = IngestionLimits(flush_s=interval_s)
    ingestion = Ingestion(log, clickhouse, directory / "offsets.db", dead_letters, sources(PARTITIONS), limits=limits)
    ready = asyncio.Event()
    running = asyncio.create_task(ingestion.run(ready))
    await ready.wait()
    before, cpu_s = await _events(clickhouse), time.process_time()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    asked = time.perf_counter()
    await ingestion.catch_up()
    caught_up_ms = (time.perf_counter() - asked) * 1000
    cpu_s = time.process_time() - cpu_s
    after = await _events(clickhouse)
    running.cancel()
    await asyncio.wait([running])
    await clickhouse.close()
    await log.close()
    made = {name: after.get(name, 0) - before.get(name, 0) for name in _PARTS + _MERGED}
    return {
        "cpu_s": cpu_s,
        "parts": sum(made[name] for name in _PARTS),
        "rewritten": made["MergedRows"] / max(1, made["InsertedRows"]),
        "caught_up_ms": caught_up_ms,
    }


async def _events(clickhouse: ClickHouse) -> dict[str, int]:
    return {name: int(value) for name, value in await clickhouse.rows(_EVENTS, {"names": _PARTS + _MERGED})}


async def measured(interval_s: float, rate: int, seconds: float) -> dict[str, Any]:
    """Append the pushes while another process ingests them; return the figures of that process (see `ingested`)."""
    with tempfile.TemporaryDirectory(prefix="carillon-bench-") as directory:
        log = SqliteLog(Path(directory) / "log" / "events.db", TOPICS)
        arguments = [sys.executable, "-m", "bench.analytics.batches", "--ingest", directory, str(interval_s)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            await appended(log, rate, seconds)
            answer, _ = await asyncio.to_thread(process.communicate)
        await log.close()
    found: dict[str, Any] = json.loads(answer)
    return found


async def appended(log: SqliteLog, rate: int, seconds: float) -> None:
    """Append unicast pushes at the rate, and their outcomes."""
    random = np.random.default_rng(0)
    started_s = time.monotonic()
    for tick in range(round(seconds * _APPENDS_PER_S)):
        await asyncio.sleep(started_s + tick / _APPENDS_PER_S - time.monotonic())
        first, last = (round(rate * ticks / _APPENDS_PER_S) for ticks in (tick, tick + 1))
        numbers = random.integers(0, _DEVICES, last - first)
        if records := pushes(FIRST_UNICAST + first, numbers, SystemClock().now_ms()):
            await log.append(records)


def pushes(first_msgid: int, devices: "np.ndarray[tuple[int], np.dtype[np.int64]]", now_ms: int) -> list[NewRecord]:
    """Return the records of one push to each of these devices: the command, its start, and two outcomes."""
    records = []
    msgids = first_msgid + np.arange(len(devices))
    numbers, partitions = devices // PARTITIONS, devices % PARTITIONS
    for msgid, number, partition in zip(msgids.tolist(), numbers.tolist(), partitions.tolist(), strict=True):
        records.append(command(msgid, 1, now_ms, Kind.KIND_UNICAST))
        records.append(started(msgid, partition, BitMap([number]), now_ms))
    for partition in np.unique(partitions).tolist():
        there = np.flatnonzero(partitions == partition)
        for kind in (OutcomeKind.OUTCOME_KIND_SENT, OutcomeKind.OUTCOME_KIND_RECEIVED):
            times_ms = np.full(len(there), now_ms)
            records.append(outcomes(partition, msgids[there], numbers[there], kind, times_ms))
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=300, help="pushes a second")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--intervals", type=float, nargs="+", default=[1, 2, 5], help="seconds that a batch gathers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ingest", nargs=2, metavar=("DIRECTORY", "INTERVAL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    configure("ERROR")
    if options.ingest:
        directory, interval_s = options.ingest
        print(json.dumps(asyncio.run(ingested(Path(directory), float(interval_s)))))
        return
    idle = asyncio.run(measured(options.intervals[0], 0, options.seconds))
    rows = {"none": idle}
    for interval_s in options.intervals:
        rows[f"{interval_s:g} s"] = asyncio.run(measured(interval_s, options.rate, options.seconds))
    for name, row in rows.items():
        pushes_made = options.rate * options.seconds if name != "none" else 0
        row["cpu_us_a_push"] = (row["cpu_s"] - idle["cpu_s"]) / pushes_made * 1e6 if pushes_made else None
    print(json.dumps(rows)) if options.json else print_table(rows, options)


def print_table(rows: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    table = Table(title=f"{options.rate} pushes/s for {options.seconds:g} s")
    for heading in ("batch gathers", "CPU, s", "CPU a push, us", "parts", "rows rewritten by merges", "catch-up, ms"):
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        a_push = "" if row["cpu_us_a_push"] is None else f"{row['cpu_us_a_push']:.0f}"
        rewritten, caught_up = f"{row['rewritten']:.2f}", f"{row['caught_up_ms']:.0f}"
        table.add_row(name, f"{row['cpu_s']:.2f}", a_push, str(row["parts"]), rewritten, caught_up)
    Console().print(table)


if __name__ == "__main__":
    main()
