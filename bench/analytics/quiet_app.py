"""Benchmark of ingestion between apps: the lag of a quiet app's outcomes while a noisy app appends many.

    python -m bench.analytics.quiet_app
    python -m bench.analytics.quiet_app --rates 0 100000 300000 600000 --seconds 20

The noisy app's outcomes are appended to the event log at each of the rates, in records as delivery writes them. The
quiet app has one outcome ten times a second; its lag is the time from the log's answer until the outcome is in the
store. `late at the end` counts the outcomes of the quiet app that are not in the store when the load ends; where the
ingestion keeps up, these are the last ones only. A request for statistics of the quiet app waits for the outcomes of
this app alone: `question` is the time from the log's answer until they are in the store. `CPU us/outcome` is the CPU
time of log and ingestion together for one outcome; other work on the machine does not change it much.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from analytics.ingestion.ingestion import Ingestion, sources
from analytics.statistics.answers import TOPICS as TOPICS_OF_ANSWERS
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from bench.analytics.history import PARTITIONS
from protos.analytics.v1.analytics_pb2 import StatisticsKind
from protos.delivery.v1.delivery_pb2 import AppOutcomes, DeliveryFact, OutcomeKind, Outcomes
from protos.runtime.v1.log_pb2 import Meta
from services.domain.ids import event_id
from services.domain.topics import DELIVERIES, TOPICS
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import SystemClock
from services.replica.dead_letters import DeadLetters

_QUIET, _NOISY = "1111111111", "2222222222"
_EVERY_S = 0.1
_WARM_UP_S = 2.0
_DRAIN_S = 120.0
_QUESTIONS = 5
_OF_BROADCASTS = TOPICS_OF_ANSWERS[StatisticsKind.STATISTICS_KIND_BROADCASTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 50_000, 100_000, 200_000], help="outcomes a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--outcomes", type=int, default=5_000, help="outcomes in a record of the noisy app")
    parser.add_argument("--directory", type=Path, help="where log and store are built")
    normal = "run the store's threads at normal priority, for a machine with other work"
    parser.add_argument("--normal-priority", action="store_true", help=normal)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carillon-bench-", dir=arguments.directory) as directory:
        rows = asyncio.run(measure(arguments, Path(directory)))
    print(json.dumps(rows)) if arguments.json else print_rows(rows)


async def measure(arguments: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """Return a row for each rate, with lags in ms."""
    log = SqliteLog(directory / "log" / "events.db", TOPICS)
    clickhouse = ClickHouse(None, directory / "chdb", low_priority=not arguments.normal_priority)
    await clickhouse.open()
    await migrate(clickhouse)
    dead_letters = DeadLetters(directory / "dead-letters.jsonl", "analytics")
    ingestion = Ingestion(log, clickhouse, directory / "offsets.db", dead_letters, sources(PARTITIONS))
    running = asyncio.create_task(ingestion.run(ready := asyncio.Event()))
    try:
        await ready.wait()
        return [await at_rate(log, ingestion, rate, arguments.outcomes, arguments.seconds) for rate in arguments.rates]
    finally:
        running.cancel()
        await asyncio.wait([running])
        await clickhouse.close()
        await log.close()


async def at_rate(log: SqliteLog, ingestion: Ingestion, rate: int, outcomes: int, seconds: float) -> dict[str, Any]:
    """Measure the quiet app while the noisy one appends at this rate; return the row."""
    made, cpu_s = [0], time.process_time()
    noise = asyncio.create_task(append_noise(log, rate, outcomes, made))
    await asyncio.sleep(_WARM_UP_S)
    before, started = made[0], time.perf_counter()
    lags = [asyncio.create_task(lag_ms(log, ingestion, at * _EVERY_S)) for at in range(round(seconds / _EVERY_S))]
    await asyncio.sleep(seconds)
    appended = (made[0] - before) / (time.perf_counter() - started)
    late = sum(not lag.done() for lag in lags)
    questions = [await question_ms(log, ingestion) for _ in range(_QUESTIONS)]
    noise.cancel()
    await asyncio.wait([noise])
    await asyncio.wait(lags, timeout=_DRAIN_S)
    times = [lag.result() for lag in lags]
    await ingestion.catch_up()
    return {
        "wanted_per_s": rate,
        "appended_per_s": round(appended),
        "p50": round(float(np.percentile(times, 50))),
        "p99": round(float(np.percentile(times, 99))),
        "max": round(max(times)),
        "question_p50": round(float(np.percentile(questions, 50))),
        "question_max": round(max(questions)),
        "not_in_the_store_at_the_end": late,
        "cpu_us": round((time.process_time() - cpu_s) * 1e6 / made[0], 1) if made[0] else 0,
    }


async def append_noise(log: SqliteLog, rate: int, outcomes: int, made: list[int]) -> None:
    """Append outcomes of the noisy app at the rate, every 20 ms, until cancelled; count them in `made[0]`."""
    values = [record_value(_NOISY, np.random.randint(0, 300_000, outcomes)) for _ in range(20)]
    started = time.perf_counter()
    while True:
        due = int((time.perf_counter() - started) * rate) - made[0]
        if count := due // outcomes:
            await log.append([new_record(random.choice(values)) for _ in range(count)])
            made[0] += count * outcomes
        await asyncio.sleep(0.02)


async def lag_ms(log: SqliteLog, ingestion: Ingestion, after_s: float) -> float:
    """Append an outcome of the quiet app after some seconds; return the time until the store has it."""
    await asyncio.sleep(after_s)
    record = new_record(record_value(_QUIET, np.array([7])))
    (offset,) = await log.append([record])
    started = time.perf_counter()
    await ingestion.applied.wait([(Partition(record.topic, record.partition), offset)])
    return (time.perf_counter() - started) * 1000


async def question_ms(log: SqliteLog, ingestion: Ingestion) -> float:
    """Return how long a question waits for an outcome that was just appended; more than 5000: it was not answered."""
    await asyncio.sleep(_EVERY_S)
    await log.append([new_record(record_value(_QUIET, np.array([7])))])
    started = time.perf_counter()
    await ingestion.catch_up(_OF_BROADCASTS, _QUIET)
    return (time.perf_counter() - started) * 1000


def record_value(appkey: str, numbers: "np.ndarray[Any, Any]") -> bytes:
    """Return the record of one message that was received by these devices."""
    count = len(numbers)
    of_app = AppOutcomes(
        appkey=appkey,
        msgids=np.full(count, 1_000_000, "<u8").tobytes(),
        numbers=numbers.astype("<u4").tobytes(),
        kinds=np.full(count, OutcomeKind.OUTCOME_KIND_RECEIVED, "u1").tobytes(),
        times_ms=np.full(count, SystemClock().now_ms(), "<i8").tobytes(),
        reason_indexes=np.zeros(count, "u1").tobytes(),
    )
    meta = Meta(event_id=event_id(), time_ms=SystemClock().now_ms(), writer="delivery")
    return DeliveryFact(meta=meta, outcomes=Outcomes(apps=[of_app])).SerializeToString()


def new_record(value: bytes) -> NewRecord:
    return NewRecord(DELIVERIES.name, random.randrange(PARTITIONS), b"", value)


def print_rows(rows: list[dict[str, Any]]) -> None:
    table = Table(title="lag of the quiet app's facts, in ms, beside the noisy app's outcomes")
    for heading in (
        "wanted/s",
        "appended/s",
        "p50",
        "p99",
        "max",
        "question p50",
        "max",
        "late at the end",
        "CPU us/outcome",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,}" for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
