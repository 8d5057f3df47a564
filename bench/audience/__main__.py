"""Benchmark of audiences: the same query over the same devices, in targeting's index and in PostgreSQL with GIN.

    python -m bench.audience --devices 10000000
    python -m bench.audience --devices 1000000 --postgres
    python -m bench.audience --devices 10000000 --values --stags 10000

The query: ((a AND b) OR (c AND d AND e)) without two other tags, in three of 34 regions. Targeting answers with
the bitmaps that a push's audience consists of; PostgreSQL only counts. `--values` measures the lists of the console's
form too: the tags and attribute values of the app that most devices have, with the number of devices.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from bench.audience.devices import APP, NOW_MS, PARTITIONS, REGIONS, Devices, copied, empty, filled, with_stags
from bench.audience.postgres import Postgres, postgres
from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Comparison,
    Filter,
    TagGroup,
)
from protos.registry.v1.devices_pb2 import Attributes, Device, DeviceFact
from protos.targeting.v1.targeting_pb2 import CountValuesRequest, ResolveResponse, ValueField
from services.domain.topics import decode
from services.log.port import Record
from services.process.clock import ManualClock
from services.targeting.counting import FIELDS, Counting
from services.targeting.filters import Resolution
from services.targeting.server import SLICE
from services.targeting.state import TargetingState
from services.targeting.store import PartitionSnapshots

QUERY = Filter(
    tags=[TagGroup(tags=[1, 2]), TagGroup(tags=[3, 4, 5])],
    not_tags=[TagGroup(tags=[6]), TagGroup(tags=[7])],
    attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_REGION, values=["r0", "r11", "r22"])],
)
ACTIVE = Filter(activity=[ActivityClause(days=90, comparison=Comparison.COMPARISON_GREATER_OR_EQUAL, opens=50)])
OPENS = 20_000
LISTED = 200
"""Values of a list, as in the console's form."""

POSTGRES = {
    "PostgreSQL, int[] and GIN": """
        SELECT count(*) FROM devices WHERE (tags @> '{1,2}' OR tags @> '{3,4,5}') AND NOT tags && '{6,7}'
        AND tags && '{1000,1011,1022}';""",
    "PostgreSQL, int[] and GIN (intarray)": """
        SELECT count(*) FROM devices WHERE tags @@ '((1&2)|(3&4&5))&!(6|7)&(1000|1011|1022)'::query_int;""",
}
_LOAD = """
CREATE EXTENSION intarray;
CREATE UNLOGGED TABLE devices (number int NOT NULL, tags int[] NOT NULL);
"""
_INDEXES = {
    "PostgreSQL, int[] and GIN": "CREATE INDEX by_tags ON devices USING gin (tags array_ops);",
    "PostgreSQL, int[] and GIN (intarray)": "CREATE INDEX by_tags ON devices USING gin (tags gin__int_ops);",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=200, help="queries to targeting")
    parser.add_argument("--postgres", action="store_true", help="compare with PostgreSQL in the same run")
    parser.add_argument("--postgres-rounds", type=int, default=15, help="queries to PostgreSQL, after two to warm up")
    parser.add_argument("--open-days", type=int, default=0, help="days of app opens, a fifth of the devices each day")
    parser.add_argument("--values", action="store_true", help="count the devices of every tag and attribute value")
    parser.add_argument("--stags", type=int, default=1000, help="with --values: string tags of the app")
    parser.add_argument("--snapshot", action="store_true", help="save the index and restore it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    print_result(measure(arguments), as_json=arguments.json)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements that the arguments select; times are in ms, in fields named `_s` in s."""
    devices = [Devices(partition, arguments.devices) for partition in range(PARTITIONS)]
    clock = ManualClock(NOW_MS)
    before = psutil.Process().memory_info().rss
    state = filled(devices, clock)
    resident = psutil.Process().memory_info().rss - before
    rows = [timed("Carillon targeting", lambda: _hits(state, QUERY), arguments.rounds)]
    activity: dict[str, Any] = {}
    if arguments.open_days:
        activity = {"activity": measured_activity(state, devices, clock, arguments.open_days)}
        rows.append(timed("Carillon, 50 opens in 90 days", lambda: _hits(state, ACTIVE), arguments.rounds))
    if arguments.values:
        with_stags(state, arguments.stags)
        rows += counted_values(state, arguments.rounds)
    result: dict[str, Any] = {
        "devices": arguments.devices,
        "partitions": PARTITIONS,
        "bytes_per_device": round(resident / arguments.devices, 1),
        "bitmap_bytes": sum(len(part.bitmap) for part in resolved(state, QUERY).partitions),
        "records_folded_per_s": folded_per_second(),
        **activity,
        "rows": rows,
    }
    if arguments.snapshot:
        result["snapshot"] = snapshot_seconds(state)
    if arguments.postgres:
        del state
        rows += against_postgres(devices, arguments.postgres_rounds)
        best = min(row["p50"] for row in rows if row["who"] in POSTGRES)
        result["times_faster"] = round(best / rows[0]["p50"], 1)
    return result


def _hits(state: TargetingState, wanted: Filter) -> int:
    return sum(part.count for part in resolved(state, wanted).partitions)


def measured_activity(
    state: TargetingState, devices: list[Devices], clock: ManualClock, days: int
) -> dict[str, float | dict[str, float]]:
    """Measure the memory of app opens, the fold of one, and the query when its sums are new, an hour old, a day old."""
    before = psutil.Process().memory_info().rss
    for part in devices:
        state.partitions[part.partition].apps[APP].activity = part.opens(days)
    resident = psutil.Process().memory_info().rss - before
    first = resolved_in_slices(state, ACTIVE)
    clock.move(3600)
    an_hour_later = resolved_in_slices(state, ACTIVE)
    clock.move(86_400)
    a_day_later = resolved_in_slices(state, ACTIVE)
    activity, hour = state.partitions[0].apps[APP].activity, state.hour()
    numbers = np.random.default_rng(1).integers(0, devices[0].count, OPENS).tolist()
    started = time.perf_counter()
    for number in numbers:
        activity.add(number, hour)
    folding = time.perf_counter() - started
    return {
        "bytes_per_device": round(resident / sum(part.count for part in devices), 1),
        "an_open_us": round(folding / OPENS * 1e6, 2),
        "first": first,
        "an_hour_later": an_hour_later,
        "a_day_later": a_day_later,
    }


def resolved_in_slices(state: TargetingState, wanted: Filter) -> dict[str, float]:
    """Resolve an audience once; return the time of all slices, and how long the longest keeps others waiting."""
    resolution, slices = Resolution(state, APP, wanted, range(PARTITIONS)), list[float]()
    is_complete = False
    while not is_complete:
        started = time.perf_counter()
        is_complete = resolution.advance(SLICE)
        slices.append((time.perf_counter() - started) * 1000)
    return {"ms": round(sum(slices), 1), "slices": len(slices), "longest_slice_ms": round(max(slices), 1)}


def resolved(state: TargetingState, wanted: Filter) -> ResolveResponse:
    """Resolve an audience in slices, as the role does."""
    resolution = Resolution(state, APP, wanted, range(PARTITIONS))
    while not resolution.advance(SLICE):
        pass
    return resolution.response


def counted_values(state: TargetingState, rounds: int) -> list[dict[str, Any]]:
    """Measure the lists of all fields, the first time and later, that of the string tags, and one that is searched."""
    started = time.perf_counter()
    listed = sum(_values_of(state, field) for field in FIELDS)
    first = row("values of all fields, first time", listed, [(time.perf_counter() - started) * 1000])
    return [
        first,
        timed("values of all fields", lambda: sum(_values_of(state, field) for field in FIELDS), rounds),
        timed("string tags", lambda: _values_of(state, ValueField.VALUE_FIELD_STAG), rounds),
        timed("string tags with a word", lambda: _values_of(state, ValueField.VALUE_FIELD_STAG, "NEWS 77"), rounds),
    ]


def _values_of(state: TargetingState, field: int, words: str = "") -> int:
    request = CountValuesRequest(appkey=APP, field=ValueField.ValueType(field), words=words, limit=LISTED)
    counting = Counting(state, request, lambda tag: False)
    while not counting.advance(SLICE):
        pass
    return len(counting.response.values)


def timed(name: str, query: Callable[[], int], rounds: int) -> dict[str, Any]:
    """Run a query `rounds` times after a warm-up; return the row of this name."""
    for _ in range(3):
        hits = query()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        query()
        times.append((time.perf_counter() - started) * 1000)
    return row(name, hits, times)


def row(name: str, hits: int, times: list[float]) -> dict[str, Any]:
    return {
        "who": name,
        "hits": hits,
        "p50": round(float(np.percentile(times, 50)), 2),
        "p99": round(float(np.percentile(times, 99)), 2),
        "rounds": len(times),
    }


def folded_per_second(count: int = 40_000) -> int:
    """Measure how many device records a second are decoded and folded, each of a new device."""
    records = [Record("devices", 0, number, b"", _fact(number).SerializeToString()) for number in range(count)]
    state = empty(ManualClock(NOW_MS))
    started = time.perf_counter()
    for record in records:
        state.apply(record, decode(record))
    return round(count / (time.perf_counter() - started))


def _fact(number: int) -> DeviceFact:
    attributes = Attributes(
        region=f"r{number % REGIONS}",
        carrier=("cm", "ct", "cu")[number % 3],
        channel=f"c{number % 20}",
        brand=f"b{number % 30}",
        model=f"m{number % 600}",
        os_version=str(number % 12),
        app_version=f"1.{number % 25}",
    )
    tags = sorted({number % 8, number % 50, number % 300})
    return DeviceFact(device=Device(appkey=APP, number=number, tags=tags, stags=["news"], attributes=attributes))


def snapshot_seconds(state: TargetingState) -> dict[str, float]:
    """Measure saving and restoring the whole index, and the longest delay of a query meanwhile."""
    for partition in state.partitions.values():
        partition.offsets["devices"] = 1
    with tempfile.TemporaryDirectory(prefix="carillon-bench-") as name:
        snapshots = PartitionSnapshots(Path(name), state)
        pauses = [_seconds(partial(snapshots.capture, number)) for number in snapshots.partitions]
        saving = _seconds(snapshots.save)
        size = sum(path.stat().st_size for path in Path(name).iterdir())
        restoring = _seconds(PartitionSnapshots(Path(name), empty(ManualClock(NOW_MS))).restore)
    return {
        "save_s": round(saving, 2),
        "restore_s": round(restoring, 2),
        "megabytes": round(size / 1e6, 1),
        "longest_pause_ms": round(max(pauses) * 1000, 2),
    }


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def against_postgres(devices: list[Devices], rounds: int) -> list[dict[str, Any]]:
    """Measure a row for each PostgreSQL query, over one table with one GIN index at a time."""
    with postgres() as server:
        server.run(_LOAD)
        server.copy("devices", (copied(part) for part in devices))
        server.run("VACUUM ANALYZE devices;")
        return [_postgres_row(server, name, rounds) for name in POSTGRES]


def _postgres_row(server: Postgres, name: str, rounds: int) -> dict[str, Any]:
    """Measure a query with PostgreSQL's own plan, and with one that must use the index; return the faster row."""
    building = _seconds(lambda: server.run(_INDEXES[name]))
    server.run("ANALYZE devices;")
    rows = []
    for before in ("SET jit = off;", "SET jit = off; SET enable_seqscan = off;"):
        hits, times = server.timed(before, POSTGRES[name], rounds)
        plan = server.run(f"{before} EXPLAIN {POSTGRES[name]}")
        scans = set(re.findall(r"((?:Parallel )?\w+(?: Heap| Index)? Scan)", plan))
        rows.append({**row(name, int(hits), times), "index_s": round(building, 1), "plan": ", ".join(sorted(scans))})
    server.run("DROP INDEX by_tags;")
    return min(rows, key=lambda entry: entry["p50"])


def print_result(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    table = Table(title=f"An audience of {result['devices']:,} devices, times in ms")
    for heading in ("", "hits", "p50", "p99", "rounds"):
        table.add_column(heading, justify="left" if not heading else "right")
    for entry in result["rows"]:
        table.add_row(entry["who"], f"{entry['hits']:,}", *(str(entry[key]) for key in ("p50", "p99", "rounds")))
    console = Console()
    console.print(table)
    for key, value in result.items():
        if key not in ("rows", "devices"):
            console.print(f"{key}: {value}")


if __name__ == "__main__":
    main()
