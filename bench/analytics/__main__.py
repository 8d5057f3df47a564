"""Benchmark of analytics: the rate of ingestion, and the times of statistics, acknowledgement pages and audits.

    python -m bench.analytics
    python -m bench.analytics --deliveries 100000000 --devices 10000000 --directory /var/tmp
    python -m bench.analytics --unprepared

Outcomes are ingested as in production: records in the event log, read, translated and inserted, each exactly once.
Then another process opens the store, as at a start, prepares it as the service does, and sends the requests of
bench.analytics.questions. `first` is the first answer of each; `raw facts` is the shortest SQL over the raw facts that
gives the same answer. Before each request for log-ins another device logs in. CPU times are those of all threads; other
work on the machine does not change them much.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, run
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

from analytics.ingestion.ingestion import Ingestion, sources
from analytics.statistics.logins import count_days
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from bench.analytics.history import PARTITIONS, History
from bench.analytics.questions import ZONE
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from services.process.clock import SystemClock
from services.replica.dead_letters import DeadLetters

Part = TypeVar("Part")
_MERGES_EVERY_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deliveries", type=int, default=1_000_000)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10, help="answers of each kind after the first")
    parser.add_argument("--unprepared", action="store_true", help="measure before answers are prepared")
    parser.add_argument("--directory", type=Path, help="where log and store are built; 100 bytes a delivery")
    parser.add_argument("--keep", action="store_true", help="keep log and store in --directory")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.keep and not arguments.directory:
        parser.error("--keep needs --directory")
    if arguments.directory:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="carillon-bench-", dir=arguments.directory) as temporary:
        directory = arguments.directory if arguments.keep else Path(temporary)
        result = asyncio.run(filled(arguments, directory)) | asked(arguments, directory)
    print(json.dumps(result)) if arguments.json else print_result(result)


async def filled(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Fill a log and a store; return the outcomes ingested a second and the CPU microseconds for each, by name."""
    history = History(arguments.devices, arguments.deliveries, SystemClock().now_ms())
    await asyncio.to_thread((directory / "history.json").write_text, json.dumps(asdict(history)))
    log = SqliteLog(directory / "log" / "events.db", TOPICS)
    clickhouse = ClickHouse(None, directory / "chdb")
    await clickhouse.open()
    try:
        await migrate(clickhouse)
        await count_days(clickhouse, ZONE)
        statements = history.statements()
        for sql, parameters in tracked("devices, log-ins and connections", statements, len(statements)):
            await clickhouse.command(sql, parameters)
        seconds, cpu_s = await ingested(history, log, clickhouse, directory)
        (count,) = (await clickhouse.rows("SELECT count() FROM deliveries"))[0]
        return {
            "deliveries": count,
            "devices": history.devices,
            "broadcasts": history.broadcasts,
            "outcomes_per_s": round(count / seconds),
            "cpu_us_per_outcome": round(cpu_s / count * 1e6, 2),
        }
    finally:
        await clickhouse.close()
        await log.close()


async def ingested(history: History, log: SqliteLog, clickhouse: ClickHouse, directory: Path) -> tuple[float, float]:
    """Append the records, ingest them, and return the seconds that took and the CPU seconds, later merges included."""
    for new_records in tracked("records", history.new_records(), history.parts):
        for at in range(0, len(new_records), 30):
            await log.append(new_records[at : at + 30])
    dead_letters = DeadLetters(directory / "dead-letters.jsonl", "analytics")
    ingestion = Ingestion(log, clickhouse, directory / "offsets.db", dead_letters, sources(PARTITIONS))
    ends = await log.ends(sources(PARTITIONS))
    started, cpu_s = time.perf_counter(), time.process_time()
    running = asyncio.create_task(ingestion.run(asyncio.Event()))
    waiting = asyncio.create_task(ingestion.applied.wait((p, end - 1) for p, end in ends.items() if end))
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    seconds = time.perf_counter() - started
    while (await clickhouse.rows("SELECT count() FROM system.merges"))[0][0]:
        await asyncio.sleep(_MERGES_EVERY_S)
    cpu_s = time.process_time() - cpu_s
    running.cancel()
    await asyncio.wait([running])
    return seconds, cpu_s


def asked(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run bench.analytics.questions in another process; return its figures."""
    options = [f"--rounds={arguments.rounds}", *(["--unprepared"] if arguments.unprepared else [])]
    command = [sys.executable, "-m", "bench.analytics.questions", str(directory), *options]
    answers: dict[str, Any] = json.loads(run(command, check=True, stdout=PIPE).stdout)
    return answers


def tracked(label: str, parts: Iterable[Part], count: int) -> Iterable[Part]:
    """Iterate with a progress bar when standard error is a terminal."""
    return track(parts, label, count, console=Console(stderr=True), disable=not sys.stderr.isatty())


def print_result(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['deliveries']:,} deliveries, {result['devices']:,} devices; times in ms")
    for heading in ("", "first", "its CPU", "p50", "max", "CPU", "raw facts"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in result["rows"]:
        table.add_row(
            *(str(row[name]) for name in ("what", "first", "first_cpu", "p50", "max", "cpu")), str(row["raw"] or "")
        )
    console = Console()
    console.print(table)
    console.print(f"the store was open after {result['open_ms']:,} ms, and prepared {result['prepare_ms']:,} ms later")
    console.print(
        f"ingested: {result['outcomes_per_s']:,} outcomes/s, {result['cpu_us_per_outcome']} us of CPU each with merges;"
        f" {result['broadcasts']} broadcasts"
    )


if __name__ == "__main__":
    main()
